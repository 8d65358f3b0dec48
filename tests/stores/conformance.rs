//! The simulated Redis against a real server: random sequences of commands and of the gateway's scripts go to both, and at each
//! step the replies agree, and so does all that is stored at the end.
//!
//! Neither waits for time to pass. The scripts of a sequence read a clock that is one of its keys, and lengths of time are
//! multiples of a thousand seconds (`scripts.rs`), so the clock of the real server decides nothing.
//! `TEST_SEED=… TEST_RUN=… cargo test --test stores conformance` plays one sequence again, and `TEST_SEQUENCES` says how many
//! are played.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::net::TcpStream;
use std::thread;

use kit::{COMPUTES, PATIENCE, RedisServer, give_way, seed};
use redis::{Parser, Value};
use sim::{Clock, Reply, Server};

use self::draw::{Draw, Step};
use self::scripts::Scripts;
use crate::differential::numbers;

mod cluster;
mod draw;
mod others;
mod scripts;
mod shortcuts;
mod templates;

const SEQUENCES: u64 = 100_000;
/// How many are sent at once.
const BATCH: u64 = 250;
/// What a length of time may be shorter by, where it is read from a real clock, in ms.
const TOLERANCE: i64 = 100_000;
const NOW_US: u64 = 1_760_000_000_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_its_simulation_reply_alike() {
    give_way(COMPUTES);
    let seed = seed();
    let numbers = numbers(SEQUENCES);
    let mut threads = Vec::new();
    for (thread, is_resp3) in [false, true].into_iter().enumerate() {
        // One of them says nothing of what it holds while it is cut off from its primary.
        let hides = if is_resp3 { "no" } else { "yes" };
        let server = RedisServer::start_with(&["--replica-serve-stale-data", hides]).await;
        let own: Vec<u64> = numbers.clone().filter(|number| *number as usize % 2 == thread).collect();
        threads.push(thread::spawn(move || {
            let simulated = Server::start("simulated", &Clock::standing(NOW_US));
            simulated.state().conditions.hides_stale_data = is_resp3;
            let mut pair = Pair::new(&server, simulated, is_resp3);
            pair.load();
            own.chunks(BATCH as usize).find_map(|numbers| pair.first_difference(seed, numbers))
        }));
    }
    let differences: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
    if let Some(difference) = differences.first() {
        panic!("TEST_SEED={seed} {difference}");
    }
}

/// The commands of the table are those that the scripts and the gateway call, and few besides.
#[test]
fn the_simulation_knows_each_command_that_is_called() {
    let known: BTreeSet<_> = sim::COMMANDS.iter().map(|command| command.name).collect();
    let called = scripts::called();
    assert!(called.len() > 30, "{called:?}");
    let is_known = |name: &String| {
        let is_part = |known: &&str| known.split('|').next() == Some(name);
        matches!(&**name, "eval" | "evalsha") || known.iter().any(is_part)
    };
    let unknown: Vec<_> = called.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "not simulated: {unknown:?}");
    // Tests look with them, or make a server forget.
    let by_tests = ["flushall", "keys", "select", "type"];
    let by_driver = ["hello"];
    let idle: Vec<_> = known
        .into_iter()
        .filter(|name| !called.contains(name.split('|').next().unwrap()))
        .filter(|name| !by_tests.contains(name) && !by_driver.contains(name))
        .collect();
    assert!(idle.is_empty(), "simulated for nobody: {idle:?}");
}

/// What the table has and the sequences have not must be held against a server in another way.
#[test]
fn each_command_that_the_simulation_knows_is_compared() {
    let mut drawn = BTreeSet::new();
    let scripts = Scripts::read();
    for number in 0..5_000 {
        for step in Draw::new(1, number).sequence(&scripts) {
            if let Step::Words(words) = &step {
                let words: Vec<String> = words
                    .iter()
                    .take(2)
                    .map(|word| String::from_utf8_lossy(word).to_ascii_lowercase())
                    .collect();
                drawn.extend([words[0].clone(), words.join("|")]);
            }
        }
    }
    // They answer what depends on other servers.
    let elsewhere = ["sentinel|get-master-addr-by-name", "sentinel|master", "sentinel|myid"];
    // Each connection begins with the first; scripts call the other, by way of a clock of their own.
    let of_time = ["hello", "time"];
    for command in sim::COMMANDS {
        let is_known = elsewhere.contains(&command.name) || of_time.contains(&command.name);
        assert!(drawn.contains(command.name) || is_known, "{} is never drawn", command.name);
    }
}

/// A server, its simulation, and a connection to each.
struct Pair {
    real: TcpStream,
    parser: Parser,
    simulated: Server,
    session: u64,
    scripts: Scripts,
    is_resp3: bool,
}

impl Pair {
    fn new(server: &RedisServer, simulated: Server, is_resp3: bool) -> Self {
        let real = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        real.set_read_timeout(Some(PATIENCE)).unwrap();
        let session = simulated.connect();
        Self { real, parser: Parser::new(), simulated, session, scripts: Scripts::read(), is_resp3 }
    }

    /// Makes the scripts known to both.
    fn load(&mut self) {
        let texts = self.scripts.calls.iter().map(|call| &*call.text).chain([scripts::DUMP]);
        let load: Vec<_> = texts.map(|text| Step::words(&["SCRIPT", "LOAD", text])).collect();
        let (real, simulated) = self.play(&load);
        assert_eq!(real, simulated);
    }

    /// The replies to one command.
    fn ask(&mut self, command: &str) -> (Value, Value) {
        let words = Step::words(&command.split(' ').collect::<Vec<_>>());
        let (mut real, mut simulated) = self.play(&[words]);
        (real.remove(0), simulated.remove(0))
    }

    /// What differs first in these sequences.
    fn first_difference(&mut self, seed: u64, numbers: &[u64]) -> Option<String> {
        let draw =
            |number: &u64| Draw::new(seed, *number).with_channels(self.is_resp3).sequence(&self.scripts);
        let sequences = numbers.iter().map(draw).collect();
        self.first_difference_in(numbers, sequences)
    }

    fn first_difference_in(&mut self, numbers: &[u64], sequences: Vec<Vec<Step>>) -> Option<String> {
        let all: Vec<Step> = sequences.iter().flatten().cloned().collect();
        let (real, simulated) = self.play(&all);
        if agree(&real, &simulated) {
            return None;
        }
        for (number, steps) in numbers.iter().zip(sequences) {
            if let Some(difference) = self.differs(&steps) {
                return Some(format!("TEST_RUN={number}: {}", self.shortened(steps, difference)));
            }
        }
        let at = real.iter().zip(&simulated).position(|(a, b)| !agree_on(a, b)).unwrap_or(0);
        Some(format!("only after all before it: {:?} and {:?}", real.get(at), simulated.get(at)))
    }

    fn differs(&mut self, steps: &[Step]) -> Option<String> {
        let (real, simulated) = self.play(steps);
        if agree(&real, &simulated) {
            return None;
        }
        let at = real.iter().zip(&simulated).position(|(a, b)| !agree_on(a, b)).unwrap_or(0);
        Some(format!(
            "  the server:     {:?}\n  its simulation: {:?}",
            Shown(&real[at]),
            Shown(&simulated[at])
        ))
    }

    /// Drops steps for as long as the rest still differs, and says what is left.
    fn shortened(&mut self, mut steps: Vec<Step>, mut difference: String) -> String {
        let mut at = steps.len();
        while at > 0 {
            at -= 1;
            let mut fewer = steps.clone();
            fewer.remove(at);
            if let Some(now) = self.differs(&fewer) {
                (steps, difference) = (fewer, now);
            }
        }
        let said: Vec<_> = steps.iter().map(|step| format!("  {}", step.say(&self.scripts))).collect();
        format!("\n{difference}\nafter\n{}", said.join("\n"))
    }

    /// Sends the steps to both, and returns all that both said.
    fn play(&mut self, steps: &[Step]) -> (Vec<Value>, Vec<Value>) {
        let hello = Step::words(&["HELLO", if self.is_resp3 { "3" } else { "2" }]);
        let end = Step::words(&["PING", "the end"]);
        // A state that a shortened sequence does not leave must not outlast it.
        let entered = |step: &Step| match step {
            Step::Condition(condition, true) => Some(Step::Condition(condition.clone(), false)),
            _ => None,
        };
        let left: Vec<_> = steps.iter().filter_map(entered).collect();
        let steps: Vec<_> = [&hello].into_iter().chain(steps).chain(&left).chain([&end]).collect();
        let sent: Vec<_> = steps.iter().map(|step| step.to_server(&self.scripts)).collect();
        self.real.write_all(&sent.concat()).unwrap();
        // While the server works, so does its simulation.
        let mut said = Vec::new();
        for (step, bytes) in steps.into_iter().zip(sent) {
            match step {
                Step::Condition(condition, is_so) => {
                    condition.set(&self.simulated, *is_so);
                    Reply::OK.write(&mut said, self.is_resp3);
                }
                _ => {
                    self.simulated.receive(self.session, &bytes);
                    said.extend(self.simulated.take_output(self.session).unwrap());
                }
            }
        }
        let end = Value::BulkString(b"the end".to_vec());
        let mut real = Vec::new();
        while real.last() != Some(&end) {
            real.push(self.parser.parse_value(&self.real).unwrap());
        }
        let mut simulated = Vec::new();
        let (mut parser, mut rest) = (Parser::new(), &said[..]);
        while simulated.last() != Some(&end) {
            simulated.push(parser.parse_value(&mut rest).unwrap());
        }
        // The first reply is of the server itself.
        (real.split_off(1), simulated.split_off(1))
    }
}

fn agree(real: &[Value], simulated: &[Value]) -> bool {
    real.len() == simulated.len() && real.iter().zip(simulated).all(|(a, b)| agree_on(a, b))
}

fn agree_on(real: &Value, simulated: &Value) -> bool {
    match (real, simulated) {
        // Where a slot is stands in the rest.
        (Value::ServerError(a), Value::ServerError(b)) => {
            a.code() == b.code() && (!matches!(a.code(), "MOVED" | "ASK") || a.details() == b.details())
        }
        (Value::Int(a), Value::Int(b)) if (500_000..1_000_000_000).contains(b) => {
            a.abs_diff(*b) <= TOLERANCE as u64
        }
        (Value::Array(a), Value::Array(b)) => agree(a, b),
        (Value::VerbatimString { text: a, .. }, Value::VerbatimString { text: b, .. }) => is_told_by(b, a),
        (Value::BulkString(a), Value::BulkString(b)) if b.starts_with(b"# ") => {
            is_told_by(&String::from_utf8_lossy(b), &String::from_utf8_lossy(a))
        }
        (a, b) => a == b,
    }
}

/// Whether each line of a section of `INFO` has its name in another, which has more.
fn is_told_by(few: &str, many: &str) -> bool {
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let all: BTreeSet<_> = many.lines().map(name).collect();
    few.lines().all(|line| all.contains(&name(line)))
}

/// A reply, with texts as texts.
struct Shown<'a>(&'a Value);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::BulkString(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Value::Array(replies) => f.debug_list().entries(replies.iter().map(Shown)).finish(),
            other => write!(f, "{other:?}"),
        }
    }
}
