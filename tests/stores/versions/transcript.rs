//! A gateway of another version, as far as Redis and other gateways know of it: what it said, and was answered and told, was
//! recorded of that version, and is said again in its place.
//!
//! A fixture has `[steps]`, and in each what was said (`>`), answered (`<`) and told unasked (`!`). All stands there as it went
//! over the wire, but for what a server chose: `<run>`, its name; `<n1>`, `<n2>`, …, the numbers and times that it gave; and
//! `<left>`, what was left of a time. A script is called by its hash. Another fixture has the scripts, each behind a line that
//! says how many lines of the one above it begins with.

use std::sync::{Arc, Mutex};

use fencepost::store::Call;
use fencepost::store::redis::RedisStore;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use regex::{Captures, Regex};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::notation::{line, reply, words};
use super::{recorded, records};
use kit::asking::LockStoreExt;
use kit::proxy::Framing;
use kit::{PATIENCE, Proxy, RedisServer, eventually};

const EXCHANGES: &str = "exchanges.txt";
const SCRIPTS: &str = "scripts.txt";
const SCRIPT: &str = "==== ";

/// What a server chose, by the names that a fixture has for it.
struct Names {
    run: String,
    numbers: Vec<String>,
}

impl Names {
    async fn at(redis: &RedisServer) -> Self {
        let run =
            format!("{}-{}", &redis.info("run_id").await[..20], &redis.info("master_replid").await[..20]);
        Self { run, numbers: Vec::new() }
    }

    /// Puts names in place of what the server chose.
    fn put_into(&mut self, text: &str) -> String {
        let number = Regex::new(r"\b\d{13,16}\b").unwrap();
        let named = |found: &Captures<'_>| {
            let at = self.numbers.iter().position(|number| *number == found[0]).unwrap_or_else(|| {
                self.numbers.push(found[0].to_owned());
                self.numbers.len() - 1
            });
            format!("<n{}>", at + 1)
        };
        number.replace_all(text, named).replace(&self.run, "<run>")
    }

    /// What is said at this server.
    fn fill(&self, text: &str) -> String {
        let name = Regex::new(r"<n(\d+)>").unwrap();
        let number = |found: &Captures<'_>| self.numbers[found[1].parse::<usize>().unwrap() - 1].clone();
        name.replace_all(text, number).replace("<run>", &self.run)
    }

    /// Whether a text is what was recorded. Learns the numbers that are new in it.
    fn learn(&mut self, pattern: &str, text: &str) -> bool {
        let known = |found: &Captures<'_>| {
            let at = found[1].parse::<usize>().unwrap() - 1;
            self.numbers.get(at).cloned().unwrap_or_else(|| found[0].to_owned())
        };
        let name = Regex::new(r"<n(\d+)>").unwrap();
        let form = regex::escape(&name.replace_all(pattern, known).replace("<run>", &self.run));
        let form = name.replace_all(&form, r"(\d{13,16})").replace("<left>", r"-?\d+");
        let Some(found) = Regex::new(&format!("^{form}$")).unwrap().captures(text) else { return false };
        let new = found.iter().skip(1).flatten().map(|number| number.as_str().to_owned());
        self.numbers.extend(new);
        true
    }
}

/// What a server said, and in answer to what, if anything.
type Heard = (Option<Vec<u8>>, Vec<u8>);

/// This build, as it is recorded.
pub struct Live {
    store: RedisStore,
    _proxy: Proxy,
    heard: Arc<Mutex<Vec<Heard>>>,
    scripts: Vec<String>,
    text: String,
}

/// Another version, as it was recorded.
pub struct Played {
    lines: std::vec::IntoIter<String>,
    connection: MultiplexedConnection,
    told: UnboundedReceiver<PushInfo>,
}

pub enum Role {
    Live(Box<Live>),
    Played(Played),
}

pub struct Other {
    role: Role,
    names: Names,
}

impl Other {
    /// A gateway of this build, to record it.
    pub async fn live(redis: &RedisServer, start: impl FnOnce(&str) -> RedisStore) -> Self {
        let proxy = Proxy::start(redis.port(), Framing::Resp).await;
        let heard = Arc::<Mutex<Vec<Heard>>>::default();
        proxy.set_tap({
            let heard = heard.clone();
            move |said, answer| heard.lock().unwrap().push((said.map(<[u8]>::to_vec), answer.to_vec()))
        });
        let store = start(&proxy.redis_url());
        let live = Live { store, _proxy: proxy, heard, scripts: Vec::new(), text: String::new() };
        Self { role: Role::Live(Box::new(live)), names: Names::at(redis).await }
    }

    /// A gateway of a version that was recorded.
    pub async fn played(redis: &RedisServer, version: &str) -> Self {
        let (mut connection, told) = connect(redis).await;
        for script in unpacked(&recorded(version, SCRIPTS)) {
            let _: String =
                redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await.unwrap();
        }
        let lines: Vec<_> = recorded(version, EXCHANGES).lines().map(str::to_owned).collect();
        let played = Played { lines: lines.into_iter(), connection, told };
        Self { role: Role::Played(played), names: Names::at(redis).await }
    }

    /// Does what the gateway does when it starts: `is_done` says when.
    pub async fn starts(&mut self, is_done: impl AsyncFnMut() -> bool) {
        match &mut self.role {
            Role::Live(live) => {
                eventually("it has started", is_done).await;
                live.step("start", &mut self.names);
            }
            Role::Played(played) => played.step("start", &mut self.names).await,
        }
    }

    /// Has the gateway ask this.
    pub async fn asks<C: Call>(&mut self, step: &str, call: C) {
        match &mut self.role {
            Role::Live(live) => {
                live.store.call(call, Instant::now() + PATIENCE).await.unwrap();
                live.step(step, &mut self.names);
            }
            Role::Played(played) => played.step(step, &mut self.names).await,
        }
    }

    /// Waits until the gateway is told what it was told then.
    pub async fn hears(&mut self, step: &str) {
        match &mut self.role {
            Role::Live(live) => {
                let heard = live.heard.clone();
                let is_told = async || heard.lock().unwrap().iter().any(|(said, _)| said.is_none());
                eventually("it is told", is_told).await;
                live.step(step, &mut self.names);
            }
            Role::Played(played) => played.step(step, &mut self.names).await,
        }
    }

    /// Says once more what was said in a step of the recorded scenario. Returns the last answer, as it is now.
    pub async fn repeats(&mut self, step: &str) -> redis::RedisResult<String> {
        let Role::Played(played) = &mut self.role else { panic!("nothing is recorded yet") };
        let lines = played.lines.as_slice().iter().skip_while(|line| **line != format!("[{step}]")).skip(1);
        let said = lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.strip_prefix("> "));
        let said: Vec<_> = said.map(|said| self.names.fill(said)).collect();
        let (last, first) = said.split_last().unwrap_or_else(|| panic!("nothing is said in {step}"));
        for said in first {
            played.try_to_say(said).await?;
        }
        played.try_to_say(last).await.map(|answer| reply(&answer))
    }

    /// What the gateway is told next.
    pub async fn is_told(&mut self) -> String {
        let Role::Played(played) = &mut self.role else { panic!("nothing is recorded yet") };
        timeout(PATIENCE, played.hear()).await.expect("it is told nothing")
    }

    /// Ends the scenario: of a gateway of this build it is recorded, of another one nothing is left to be said.
    pub fn ends(self) {
        match self.role {
            Role::Live(live) => {
                records(EXCHANGES, &live.text);
                records(SCRIPTS, &packed(live.scripts));
            }
            Role::Played(mut played) => assert_eq!(played.lines.next(), None),
        }
    }
}

impl Live {
    /// Notes what was heard since the last step.
    fn step(&mut self, step: &str, names: &mut Names) {
        self.text += &format!("[{step}]\n");
        for (said, answer) in std::mem::take(&mut *self.heard.lock().unwrap()) {
            let value = redis::parse_redis_value(&answer);
            let Some(said) = said else {
                if let Some(told) = told(value.unwrap()) {
                    let told = of_time(&names.put_into(&told));
                    self.text += &format!("! {told}\n");
                }
                continue;
            };
            let Value::Array(said) = redis::parse_redis_value(&said).unwrap() else { continue };
            let mut said: Vec<String> =
                said.iter().map(|word| redis::from_redis_value_ref(word).unwrap()).collect();
            match said[0].as_str() {
                "EVALSHA" | "EVAL" if answer.starts_with(b"-NOSCRIPT") => continue,
                // A look at the server, which concerns no other gateway.
                "EVALSHA" | "EVAL" if said[2] == "0" => continue,
                "EVAL" => {
                    let hash = redis::Script::new(&said[1]).get_hash().to_owned();
                    self.scripts.push(std::mem::replace(&mut said[1], hash));
                    "EVALSHA".clone_into(&mut said[0]);
                }
                "EVALSHA" => {}
                // That is answered by a push.
                "SSUBSCRIBE" => {
                    self.text += &format!("> {}\n", line(&said));
                    continue;
                }
                _ => continue,
            }
            let said = names.put_into(&line(&said));
            let answer = of_time(&names.put_into(&reply(&value.unwrap())));
            self.text += &format!("> {said}\n< {answer}\n");
        }
    }
}

impl Played {
    /// Does what was recorded of a step.
    async fn step(&mut self, step: &str, names: &mut Names) {
        assert_eq!(
            self.lines.next(),
            Some(format!("[{step}]")),
            "the scenario has other steps than when it was recorded"
        );
        let mut answer = None;
        while let Some(text) = self.lines.as_slice().first().filter(|line| !line.starts_with('[')).cloned() {
            self.lines.next();
            let (mark, text) = text.split_once(' ').unwrap();
            match mark {
                ">" => answer = Some(self.say(&names.fill(text)).await),
                "<" => {
                    let answer = answer.take().unwrap();
                    assert!(
                        names.learn(text, &answer),
                        "it {step}, and expects\n{text}\nbut is answered\n{answer}"
                    );
                }
                _ => {
                    let told = timeout(PATIENCE, self.hear()).await;
                    let told = told.unwrap_or_else(|_| panic!("it {step}, and is not told {text}"));
                    assert!(names.learn(text, &told), "it {step}, and expects\n{text}\nbut is told\n{told}");
                }
            }
        }
    }

    async fn say(&mut self, said: &str) -> String {
        reply(&self.try_to_say(said).await.unwrap())
    }

    async fn try_to_say(&mut self, said: &str) -> redis::RedisResult<Value> {
        let said = words(said);
        let (command, args) = said.split_first().unwrap();
        redis::cmd(command).arg(args).query_async(&mut self.connection).await
    }

    async fn hear(&mut self) -> String {
        loop {
            let PushInfo { kind, data } = self.told.recv().await.unwrap();
            if let Some(told) = told(Value::Push { kind, data }) {
                return told;
            }
        }
    }
}

/// A connection, and what it is told unasked.
pub async fn connect(redis: &RedisServer) -> (MultiplexedConnection, UnboundedReceiver<PushInfo>) {
    let client = redis::Client::open(format!("{}/?protocol=resp3", redis.url())).unwrap();
    let (sender, told) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender).set_response_timeout(Some(PATIENCE));
    (client.get_multiplexed_async_connection_with_config(&config).await.unwrap(), told)
}

/// The channel and the text of what is told on one.
pub fn told(push: Value) -> Option<String> {
    let Value::Push { kind: PushKind::Message | PushKind::SMessage, data } = push else { return None };
    let words: Vec<String> = data.iter().map(|word| redis::from_redis_value_ref(word).unwrap()).collect();
    Some(line(&words))
}

/// The text with a name in place of each time that is left.
fn of_time(text: &str) -> String {
    let text = Regex::new(r"\b\d{3,8}\b").unwrap().replace_all(text, "<left>").into_owned();
    // Behind a lock in the answer to a heartbeat.
    Regex::new(r#"(:lock:[^"]*") -?\d+"#).unwrap().replace_all(&text, "$1 <left>").into_owned()
}

fn packed(mut scripts: Vec<String>) -> String {
    scripts.sort();
    scripts.dedup();
    let (mut text, mut above) = (String::new(), String::new());
    for script in scripts {
        let same = above.lines().zip(script.lines()).take_while(|(above, line)| above == line).count();
        text += &format!("{SCRIPT}{same}\n");
        script.lines().skip(same).for_each(|line| text += &format!("{line}\n"));
        above = script;
    }
    text
}

fn unpacked(fixture: &str) -> Vec<String> {
    let mut scripts = Vec::<String>::new();
    for line in fixture.lines() {
        match line.strip_prefix(SCRIPT) {
            Some(same) => {
                let above = scripts.last().map(String::as_str).unwrap_or_default();
                let begin =
                    above.lines().take(same.parse().unwrap()).map(|line| format!("{line}\n")).collect();
                scripts.push(begin);
            }
            None => *scripts.last_mut().unwrap() += &format!("{line}\n"),
        }
    }
    scripts
}
