//! The small scripts of a quorum beside the general ones. Whatever a server holds, a call of a small one does for each request what the
//! general one would do, or nothing.

use kit::seed;
use sim::{Clock, Reply, Server};

use super::NOW_US;
use super::draw::{Condition, Draw, Step, TOKENS};
use super::scripts::Scripts;
use crate::differential::numbers;

const SEQUENCES: u64 = 10_000;

/// One request, as both kinds of scripts are asked it.
struct Asked {
    lock: &'static str,
    token: usize,
    of_small: Vec<String>,
    of_general: Vec<String>,
    /// What the general script replies where the small one says that it has done the same.
    done: Reply,
}

impl Asked {
    fn lock_key(&self) -> String {
        format!("{{0}}lock:{}", self.lock)
    }

    fn tombstone_key(&self) -> String {
        format!("{{0}}freed:{}", TOKENS[self.token])
    }

    fn watch_key(&self) -> String {
        format!("{{0}}watch:{}", self.lock)
    }
}

#[test]
fn a_small_script_of_a_quorum_does_what_the_general_one_would_do_or_nothing() {
    let (scripts, seed) = (Scripts::read(), seed());
    let (mut taken, mut freed, mut refused, mut left) = (0, 0, 0, 0);
    let servers = ["small", "general"].map(|name| Played::start(name, &scripts));
    let [small, general] = &servers;
    for number in numbers(SEQUENCES) {
        let steps = Draw::new(seed, number).sequence(&scripts);
        let steps: Vec<_> = steps.into_iter().filter(|step| !matches!(step, Step::Dump)).collect();
        // Without a record, which comes behind the clock, a server does nothing.
        let has_record = matches!(&steps[2], Step::Words(words) if words.contains(&b"{0}record".to_vec()));
        if !has_record {
            continue;
        }
        servers.iter().for_each(|server| server.play(&steps));
        let mut draw = Draw::new(seed, !number);
        let member = match draw.chance(0.1) {
            true => [draw.argument("i", 0), draw.argument("c", 0)],
            false => ["run1", "1"].map(str::to_owned),
        };
        let takes = draw.chance(0.6);
        let all: Vec<_> =
            (0..1 + draw.below(4)).map(|_| if takes { take(&mut draw) } else { free(&mut draw) }).collect();
        if draw.chance(0.1) {
            let quarantine = ["HSET", "{0}record", "since", "1760000000000"].map(str::to_owned);
            servers.iter().for_each(|server| drop(server.words(quarantine.clone().into())));
        }
        let condition = draw.chance(0.1).then(|| Condition::OF_ALL[draw.below(3)].clone());
        let set = |is_so| {
            condition.iter().for_each(|condition| {
                servers.iter().for_each(|server| condition.set(&server.server, is_so));
            })
        };
        set(true);
        let record = ["{0}record".to_owned()].into_iter();
        let keys: Vec<_> = match takes {
            true => record.chain(all.iter().flat_map(|one| [one.lock_key(), one.tombstone_key()])).collect(),
            false => {
                let locks = all.iter().map(Asked::lock_key);
                record.chain(locks).chain(all.iter().map(Asked::watch_key)).collect()
            }
        };
        let name = if takes { "TAKE_FREE" } else { "FREE_OWN" };
        let args = member.iter().cloned().chain(all.iter().flat_map(|one| one.of_small.clone()));
        let reply = small.run(name, keys, args.collect());
        let replies = match reply {
            Reply::Array(replies) if all.len() > 1 => replies,
            one => vec![one],
        };
        assert_eq!(replies.len(), all.len(), "TEST_SEED={seed} TEST_RUN={number}: {replies:?}");
        // Those who are refused come first, and what was left to the general script comes last.
        let (rest, mut done): (Vec<_>, Vec<_>) =
            all.iter().zip(&replies).partition(|(_, reply)| **reply == Reply::Int(-1));
        done.sort_by_key(|(_, reply)| !matches!(reply, Reply::Array(_)));
        let told = |(one, reply): &(&Asked, &Reply)| match reply {
            Reply::Int(1) => one.done.clone(),
            // A lock that was freed is kept for no time.
            Reply::Bulk(_) => Reply::Array(vec![Reply::Int(0), (*reply).clone(), Reply::Int(0)]),
            reply => (*reply).clone(),
        };
        let by_small = done.iter().map(told);
        let by_small: Vec<_> =
            by_small.chain(rest.iter().map(|(one, _)| small.ask(one, takes, &member))).collect();
        let by_general: Vec<_> =
            done.iter().chain(&rest).map(|(one, _)| general.ask(one, takes, &member)).collect();
        let said = || steps.iter().map(|step| format!("\n  {}", step.say(&scripts))).collect::<String>();
        assert_eq!(by_small, by_general, "TEST_SEED={seed} TEST_RUN={number}: {replies:?} after{}", said());
        assert_eq!(
            small.all(),
            general.all(),
            "TEST_SEED={seed} TEST_RUN={number}: {replies:?} after{}",
            said()
        );
        set(false);
        taken += replies.iter().filter(|reply| **reply == Reply::Int(1)).count();
        freed += replies.iter().filter(|reply| matches!(reply, Reply::Bulk(_))).count();
        refused += replies.iter().filter(|reply| matches!(reply, Reply::Array(_))).count();
        left += rest.len();
    }
    println!("taken {taken}, freed {freed}, refused {refused}, left to the general scripts {left}");
    let is_whole = numbers(SEQUENCES) == (0..SEQUENCES);
    assert!(
        !is_whole || [taken, freed, refused, left].iter().all(|count| *count > 50),
        "{taken} {freed} {refused} {left}"
    );
}

fn take(draw: &mut Draw) -> Asked {
    let (lock, token, field) =
        (["a", "b", "c"][draw.below(3)], draw.below(3), ["b0", "b0", "b1"][draw.below(3)]);
    let attempt = draw.argument("a", token);
    let until = if draw.chance(0.1) { draw.argument("u", 0) } else { String::new() };
    let (ttl, owner) = (draw.argument("t", 0), draw.argument("o", 0));
    // Some are too far ahead of the server's clock, or would last too long.
    let number = NOW_US + draw.below(4) as u64 + [0, 0, 0, 30_000_000, 60_000_000_000][draw.below(5)];
    let ttl = if draw.chance(0.05) { "90000000".to_owned() } else { ttl };
    let number = number.to_string();
    let hash = TOKENS[token].repeat(32);
    let value = format!("{hash} {attempt} {number} {owner}");
    let left_ms = Reply::Int(ttl.parse().unwrap());
    let done =
        [Reply::Int(0), Reply::Bulk(value.clone().into()), left_ms, Reply::Bulk(number.clone().into())];
    let general =
        [&*until, field, &hash, &attempt, "grant", &ttl, &number, &owner, "", "", "100000000", "1", "", ""];
    Asked {
        lock,
        token,
        of_general: general.map(str::to_owned).into(),
        of_small: vec![field.to_owned(), until, ttl, number, value],
        done: Reply::Array(done.into()),
    }
}

fn free(draw: &mut Draw) -> Asked {
    let (lock, token) = (["a", "b"][draw.below(2)], draw.below(3));
    let hash = TOKENS[token].repeat(32);
    let general = ["", "b0", &hash, "", "", "0", "0"];
    Asked {
        lock,
        token,
        of_general: general.map(str::to_owned).into(),
        of_small: vec![hash],
        done: Reply::Nil,
    }
}

/// A server with what a sequence has left on it.
struct Played<'a> {
    server: Server,
    session: u64,
    scripts: &'a Scripts,
}

impl<'a> Played<'a> {
    fn start(name: &str, scripts: &'a Scripts) -> Self {
        let server = Server::start(name, &Clock::standing(NOW_US));
        let played = Self { session: server.connect(), server, scripts };
        for text in scripts.calls.iter().map(|call| &*call.text).chain([super::scripts::DUMP]) {
            played.words(["SCRIPT", "LOAD", text].map(str::to_owned).into());
        }
        played
    }

    fn play(&self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Condition(condition, is_so) => condition.set(&self.server, *is_so),
                step => self.server.receive(self.session, &step.to_server(self.scripts)),
            }
            // What it says of it is compared elsewhere.
            self.server.take_output(self.session);
        }
    }

    fn words(&self, words: Vec<String>) -> Reply {
        self.server.ask(self.session, &words.into_iter().map(String::into_bytes).collect::<Vec<_>>())
    }

    fn run(&self, name: &str, keys: Vec<String>, args: Vec<String>) -> Reply {
        let call = self.scripts.calls.iter().find(|call| call.name == format!("quorum {name}")).unwrap();
        let words = ["EVALSHA".to_owned(), call.hash.clone(), keys.len().to_string()];
        self.words(words.into_iter().chain(keys).chain(args).collect())
    }

    /// What the general script replies.
    fn ask(&self, one: &Asked, takes: bool, member: &[String; 2]) -> Reply {
        let args = member.iter().chain(&one.of_general).cloned().collect();
        let keys = vec!["{0}record".to_owned(), one.lock_key(), one.tombstone_key(), one.watch_key()];
        self.run(if takes { "ACQUIRE" } else { "RELEASE" }, keys, args)
    }

    fn all(&self) -> Reply {
        self.words(vec!["EVALSHA".to_owned(), self.scripts.dump_hash.clone(), "0".to_owned()])
    }
}
