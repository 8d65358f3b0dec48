//! What each kind of reply of Redis means for a request: the table at the head of `src/store/redis/failure.rs`, row by
//! row, on a server that is really in the state which gives that reply.
//!
//! Of its last rows, what becomes of a connection around a command stands in `lost_replies.rs`, a server that stands
//! still in `redis_faults/stalls.rs`, and what a cluster says of a slot on its way in `failover/migration.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use kit::{Answer, Client, Gateway, PATIENCE, eventually, fresh_token};
use state::{Server, State, leaves};

pub mod commands;
mod state;

/// What `--store-timeout` is unless it is given, and how much later an answer may be seen on a busy machine.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const MARGIN: Duration = Duration::from_millis(1500);
/// Nothing that is only waited for takes that long.
const PATIENT: [&str; 2] = ["--store-timeout", "20s"];
/// So long that it is not the deadline that ended it: a try alone would take twice as long.
const AT_ONCE: Duration = Duration::from_secs(5);

/// What is asked for. All but the first begin with a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Take,
    TakeAgain,
    Renew,
    Release,
    Look,
    /// Which promises the holder its lock, and is written down.
    LookAsHolder,
}

const WISHES: [Wish; 6] =
    [Wish::Take, Wish::TakeAgain, Wish::Renew, Wish::Release, Wish::Look, Wish::LookAsHolder];

/// A server, a gateway on it, and a lock for each wish.
struct Scene {
    server: Server,
    gateway: Gateway,
    client: Client,
    tokens: BTreeMap<Wish, String>,
}

impl Scene {
    async fn new(state: State, args: &[&str]) -> Self {
        let server = Server::start(state).await;
        let url = server.url(state);
        let gateway = Gateway::start(&[&["--store", &url], args].concat()).await;
        let client = Client::new(gateway.address);
        eventually("it serves", async || client.get("/readyz").send().await.status == 200).await;
        let mut scene = Self { server, gateway, client, tokens: BTreeMap::new() };
        for wish in WISHES {
            scene.prepare(wish).await;
        }
        scene
    }

    /// Gives the wish what it begins with.
    async fn prepare(&mut self, wish: Wish) {
        let token = fresh_token();
        if wish != Wish::Take {
            self.client.put(&format!("/locks/{wish:?}?ttl=1h")).token(&token).send().await.expect(201);
        }
        self.tokens.insert(wish, token);
    }

    /// Asks, and says what was answered after what time.
    fn ask(&self, wish: Wish) -> JoinHandle<(Answer, Duration)> {
        let address = format!("/locks/{wish:?}");
        let token = &self.tokens[&wish];
        let call = match wish {
            Wish::Take | Wish::TakeAgain => self.client.put(&(address + "?ttl=2h")).token(token),
            Wish::Renew => self.client.patch(&(address + "?ttl=2h")).token(token),
            Wish::Release => self.client.delete(&address).token(token),
            Wish::Look => self.client.get(&address),
            Wish::LookAsHolder => self.client.get(&address).token(token),
        };
        let begun = Instant::now();
        tokio::spawn(async move { (call.within(2 * PATIENCE).send().await, begun.elapsed()) })
    }

    /// Asks until the server is found again, and expects success.
    async fn gets(&self, wish: Wish, state: State) {
        let mut last = None;
        eventually("it serves again", async || {
            let (answer, _) = self.ask(wish).await.unwrap();
            last.insert(answer).status != 503
        })
        .await;
        let answer = last.unwrap();
        assert_eq!(answer.status, success(wish), "{}", self.why(wish, state, &answer));
    }

    fn why(&self, wish: Wish, state: State, answer: &Answer) -> String {
        let log = self.gateway.log();
        let last = &log[log.len().saturating_sub(5)..];
        format!("{state:?}, {wish:?}: {} {} {last:#?}", answer.status, String::from_utf8_lossy(&answer.body))
    }
}

fn success(wish: Wish) -> u16 {
    match wish {
        Wish::Take => 201,
        Wish::TakeAgain | Wish::Renew | Wish::Look | Wish::LookAsHolder => 200,
        Wish::Release => 204,
    }
}

/// Whoever asks while it lasts is answered in time, and certainly nothing happened: there is no doubt to be ended, so
/// nothing is voided either.
async fn refuses_and_does_nothing(state: State) {
    let is_told_at_once = state.is_told_at_once();
    let mut scene = Scene::new(state, if is_told_at_once { &PATIENT } else { &[] }).await;
    let mut before = scene.server.locks_and_marks().await;
    scene.server.enter(state, &scene.gateway).await;
    let answers = join_all(WISHES.map(|wish| scene.ask(wish))).await;
    // Whoever did not get as far as the server is not told more than that, until it is known why nobody does.
    eventually("the reason is told", async || {
        let (answer, _) = scene.ask(Wish::Take).await.unwrap();
        let detail = answer.json()["detail"].as_str().map(str::to_owned).unwrap_or_default();
        state.said().iter().any(|said| detail.contains(said))
    })
    .await;
    scene.server.leave(state).await;
    let mut after = scene.server.locks_and_marks().await;
    for (wish, answer) in WISHES.into_iter().zip(answers) {
        let (answer, took) = answer.unwrap();
        let why = scene.why(wish, state, &answer);
        let in_time = if is_told_at_once { AT_ONCE } else { STORE_TIMEOUT + MARGIN };
        assert!(took < in_time, "after {took:?}: {why}");
        if answer.status == success(wish) && state.may_allow(wish) {
            for all in [&mut before, &mut after] {
                all.retain(|key, _| !key.ends_with(&format!(":{wish:?}")) && !key.contains(":freed:"));
            }
            continue;
        }
        assert!(!state.must_allow(wish), "{why}");
        assert_eq!(answer.status, 503, "{why}");
        assert_eq!(answer.json()["type"], "/problems/store-unavailable", "{why}");
    }
    assert_eq!(before, after, "{state:?} has changed something");
    for wish in WISHES {
        scene.gets(wish, state).await;
    }
}

/// Whoever asks while it lasts waits, and gets what was asked for when it is over: nobody has to ask again.
async fn passes(state: State) {
    let mut scene = Scene::new(state, &PATIENT).await;
    for wish in WISHES.into_iter().filter(|wish| !state.may_allow(*wish)) {
        let left = leaves(&scene.gateway);
        scene.server.enter(state, &scene.gateway).await;
        let counted = scene.server.refusals(state).await;
        let mut ask = scene.ask(wish);
        let refused = async {
            match counted {
                // A refusal of the gateway's own look would do as well: then the request waits for another connection.
                Some(counted) => {
                    let count = async || scene.server.refusals(state).await.unwrap_or_default();
                    let is_refused = async || count().await > counted || leaves(&scene.gateway) > left;
                    eventually("it is refused", is_refused).await;
                }
                // The server can tell nobody. However short this is, nobody may have been answered by then.
                None => sleep(Duration::from_millis(300)).await,
            }
        };
        tokio::select! {
            answer = &mut ask => panic!("too early: {}", scene.why(wish, state, &answer.unwrap().0)),
            () = refused => {}
        }
        scene.server.leave(state).await;
        let (answer, took) = ask.await.unwrap();
        let why = scene.why(wish, state, &answer);
        assert_eq!(answer.status, success(wish), "after {took:?}: {why}");
    }
}

/// Makes tests of the states of which both hold.
macro_rules! states_that_pass {
    ($($name:ident: $state:expr),+ $(,)?) => {
        $(mod $name {
            use super::State;

            #[tokio::test(flavor = "multi_thread")]
            async fn costs_a_moment_where_it_passes() {
                super::passes($state).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn refuses_and_does_nothing_where_it_lasts() {
                super::refuses_and_does_nothing($state).await;
            }
        })+
    };
}

states_that_pass!(
    gone: State::Gone,
    read_only: State::ReadOnly,
    master_down: State::MasterDown,
    loading: State::Loading,
    busy: State::Busy,
    cluster_down: State::ClusterDown,
);

/// Makes tests of the states that somebody must end: nobody is made to wait for that.
macro_rules! states_that_last {
    ($($name:ident: $state:expr),+ $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            refuses_and_does_nothing($state).await;
        })+
    };
}

states_that_last!(
    out_of_memory_stops_grants_only: State::OutOfMemory,
    a_disk_that_fails_stops_all_but_looks: State::DiskError,
    too_few_replicas_stop_all_but_looks: State::TooFewReplicas,
    a_user_without_permission_is_told: State::Forbidden,
    a_password_that_was_set_meanwhile_is_told: State::PasswordSet,
    a_password_that_was_changed_meanwhile_is_told: State::PasswordChanged,
);

/// A script keeps what it wrote before it met the error, so nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn any_other_error_of_a_script_is_unknown() {
    let state = State::Forbidden;
    let scene = Scene::new(state, &["--store-timeout", "1s", "--redis-accept", "missing-permission"]).await;
    // Not the scripts are forbidden, but what they do.
    scene.server.say(&["ACL", "SETUSER", "default", "-hincrby", "-pexpire", "-del"]).await;
    let changing = WISHES.into_iter().filter(|wish| *wish != Wish::Look);
    for (wish, ask) in changing.map(|wish| (wish, scene.ask(wish))).collect::<Vec<_>>() {
        let (answer, _) = ask.await.unwrap();
        let why = scene.why(wish, state, &answer);
        assert_eq!(
            (answer.status, &answer.json()["type"]),
            (503, &"/problems/outcome-unknown".into()),
            "{why}"
        );
    }
    scene.server.say(&["ACL", "SETUSER", "default", "+@all"]).await;
    for wish in WISHES {
        scene.gets(wish, state).await;
    }
}

/// Nothing of ours wrote it, and what else stands in the way of that lock is not known.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_somebody_else_leaves_doubt_and_spares_the_other_locks() {
    let state = State::Forbidden;
    let scene = Scene::new(state, &["--store-timeout", "1s"]).await;
    scene.server.say(&["RPUSH", "fencepost:{0}:lock:Take", "something"]).await;
    for call in [scene.client.put("/locks/Take"), scene.client.delete("/locks/Take").token(&fresh_token())] {
        let answer = call.send().await;
        let why = scene.why(Wish::Take, state, &answer);
        assert_eq!(
            (answer.status, &answer.json()["type"]),
            (503, &"/problems/outcome-unknown".into()),
            "{why}"
        );
        assert!(answer.json()["detail"].as_str().unwrap().contains("WRONGTYPE"), "{why}");
    }
    for wish in WISHES.into_iter().filter(|wish| *wish != Wish::Take) {
        scene.gets(wish, state).await;
    }
}
