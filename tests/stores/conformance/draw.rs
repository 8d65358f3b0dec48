//! What happens in a sequence: commands as anybody could send them, right and wrong ones, and scripts as the gateway calls them.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use sim::Server;

use super::scripts::{Call, Scripts};
use super::templates::{COMMANDS, TEXTS};

/// One thing that is sent.
#[derive(Clone)]
pub enum Step {
    Words(Vec<Vec<u8>>),
    /// One of the calls of scripts, with its keys and arguments.
    Script(usize, Vec<String>, Vec<String>),
    /// All that is stored is to be told.
    Dump,
    /// The server enters a state, or leaves it.
    Condition(Condition, bool),
}

/// A state in which a server refuses something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Full,
    TooFewReplicas,
    Replica,
    /// A slot is on its way to the second node of a cluster, which has this id.
    Leaving(usize, String),
}

impl Condition {
    pub const OF_ALL: [Self; 3] = [Self::Full, Self::TooFewReplicas, Self::Replica];

    fn to_server(&self, is_so: bool) -> String {
        let number = u8::from(is_so);
        match self {
            Self::Full => format!("CONFIG SET maxmemory {number}"),
            Self::TooFewReplicas => format!("CONFIG SET min-replicas-to-write {number}"),
            // Nobody is there.
            Self::Replica => (if is_so { "REPLICAOF 127.0.0.1 1" } else { "REPLICAOF NO ONE" }).to_owned(),
            Self::Leaving(slot, to) if is_so => format!("CLUSTER SETSLOT {slot} MIGRATING {to}"),
            Self::Leaving(slot, _) => format!("CLUSTER SETSLOT {slot} STABLE"),
        }
    }

    /// Does the same to a simulated server.
    pub fn set(&self, server: &Server, is_so: bool) {
        let mut state = server.state();
        match self {
            Self::Leaving(slot, _) => {
                let leaving = state.cluster.as_mut().map(|cluster| &mut cluster.leaving).unwrap();
                leaving.remove(slot);
                leaving.extend(is_so.then_some((*slot, 1)));
            }
            Self::Full => state.conditions.is_full = is_so,
            Self::TooFewReplicas => state.conditions.replicas_to_write = usize::from(is_so),
            Self::Replica => {
                state.follows = is_so.then(|| ("127.0.0.1".to_owned(), 1));
                state.conditions.is_cut_from_primary = is_so;
            }
        }
    }
}

impl Step {
    pub fn words(words: &[&str]) -> Self {
        Self::Words(words.iter().map(|word| word.as_bytes().to_vec()).collect())
    }

    /// As a client sends it.
    pub fn to_server(&self, scripts: &Scripts) -> Vec<u8> {
        let eval = |hash: &str, keys: &[String], args: &[String]| {
            let count = keys.len().to_string();
            let words = ["EVALSHA", hash, &count].into_iter().map(str::to_owned);
            words.chain(keys.iter().cloned()).chain(args.iter().cloned()).map(String::into_bytes).collect()
        };
        let words: Vec<Vec<u8>> = match self {
            Self::Words(words) => words.clone(),
            Self::Script(call, keys, args) => eval(&scripts.calls[*call].hash, keys, args),
            Self::Dump => eval(&scripts.dump_hash, &[], &[]),
            Self::Condition(condition, is_so) => {
                condition.to_server(*is_so).split(' ').map(|word| word.as_bytes().to_vec()).collect()
            }
        };
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    pub fn say(&self, scripts: &Scripts) -> String {
        match self {
            Self::Words(words) => {
                format!("{:?}", words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>())
            }
            Self::Script(call, keys, args) => format!("{} {keys:?} {args:?}", scripts.calls[*call].name),
            Self::Dump => "all that is stored".to_owned(),
            Self::Condition(condition, is_so) => format!("{condition:?}: {is_so}"),
        }
    }
}

pub const TOKENS: [&str; 3] = ["a1", "b2", "c3"];
const CLOCK: u64 = 1_760_000_000;
/// With the id of a replication at its end. It is as long as those that a server draws at each promotion, so that none of them
/// begins with it.
const OF_A_REPLICA: &str = "ab12/cd34cd34cd34cd34cd34cd34cd34cd34cd34cd34";

/// Draws a sequence, which is a matter of the seed and its number alone.
pub struct Draw {
    random: StdRng,
    has_channels: bool,
    /// The time of the clock among the keys, in seconds.
    seconds: u64,
}

impl Draw {
    pub fn new(seed: u64, number: u64) -> Self {
        let random = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { random, has_channels: true, seconds: CLOCK }
    }

    /// In RESP2 a connection that listens may do nothing else.
    pub fn with_channels(self, has_channels: bool) -> Self {
        Self { has_channels, ..self }
    }

    pub fn sequence(mut self, scripts: &Scripts) -> Vec<Step> {
        let mut steps = vec![Step::words(&["FLUSHALL"]), self.clock()];
        let theme = ["", "redis", "redis", "fast", "once", "once", "quorum", "quorum"][self.below(8)];
        if theme == "quorum" && self.chance(0.9) {
            let record = "HSET {0}record run run1 epoch 1 since 0 floor 0 longest 9000000 members a,b settled 1 born 1";
            steps.push(Step::words(&record.split(' ').collect::<Vec<_>>()));
            if self.chance(0.5) {
                steps.push(Step::words(&["HSET", "{0}record", "quorum", "id1"]));
            }
        }
        if theme == "redis" || theme == "fast" {
            let beat =
                ["ZADD", "{0}gates", &format!("{CLOCK}000"), "gateway1", &format!("{CLOCK}000"), "gateway2"];
            steps.push(Step::words(&beat));
        }
        let count = 5 + self.below(10);
        let troubled =
            self.chance(0.2).then(|| (self.below(count), Condition::OF_ALL[self.below(3)].clone()));
        for at in 0..count {
            if let Some((_, condition)) = troubled.as_ref().filter(|(from, _)| *from == at) {
                steps.push(Step::Condition(condition.clone(), true));
            }
            let step = match theme {
                "" => self.command(),
                _ if self.chance(0.1) => self.command(),
                _ if self.chance(0.15) => {
                    self.seconds += [0, 1, 2, 20, 3_000][self.below(5)];
                    self.clock()
                }
                _ => self.script(theme, scripts),
            };
            steps.push(step);
        }
        if let Some((_, condition)) = troubled {
            steps.push(Step::Condition(condition, false));
        }
        steps.push(Step::Dump);
        steps
    }

    fn clock(&mut self) -> Step {
        let micros = [0, 0, 1, 900_000][self.below(4)];
        Step::words(&["SET", "{0}clock", &format!("{} {micros}", self.seconds)])
    }

    pub fn below(&mut self, count: usize) -> usize {
        self.random.random_range(0..count)
    }

    pub fn chance(&mut self, of_one: f64) -> bool {
        self.random.random_bool(of_one)
    }

    fn one(&mut self, words: &[&str]) -> String {
        (*words.choose(&mut self.random).unwrap()).to_owned()
    }

    fn command(&mut self) -> Step {
        loop {
            let template = self.one(COMMANDS);
            if self.has_channels || !template.contains("SUBSCRIBE") {
                let words: Vec<_> = template.split(' ').map(|kind| self.word(kind).into_bytes()).collect();
                return Step::Words(words);
            }
        }
    }

    fn word(&mut self, kind: &str) -> String {
        let words: &[&str] = match kind {
            "k" => &[
                "{0}k1",
                "{0}k1",
                "{0}k2",
                "{0}k2",
                "{0}k3",
                "{0}lock:a",
                "{0}fence",
                "{0}line:a",
                "{0}seats:a",
            ],
            "v" => &["", "v", "12", "-5", "x y", "007", "{0}k1"],
            "l" => &["1000000", "2000000", "5000000", "0", "-1", "x", "1.5", "9223372036854775807", "+1"],
            "f" => &["f1", "f2", "f3", ""],
            "n" => &["0", "1", "2", "-1", "-2", "5", "x", "9223372036854775807", "01", "-0"],
            "s" => &[
                "1",
                "2.5",
                "-3",
                "1e3",
                "inf",
                "-inf",
                "nan",
                "x",
                "0.1",
                "1760000000000000",
                "-0",
                "1e-7",
                "12345678.9",
            ],
            "r" => &["-inf", "+inf", "1", "(1", "2.5", "(2.5", "x", "1760000000000", "0"],
            "m" => &["m1", "m2", "m3", "gateway1"],
            "c" => &["c1", "c2"],
            "p" => &["{0}k1", "*k2", "{0}k[", "{0}?3", "none*"],
            "t" => TEXTS,
            literal => return literal.to_owned(),
        };
        self.one(words)
    }

    /// One of the calls of this kind of scripts.
    fn script(&mut self, kind: &str, scripts: &Scripts) -> Step {
        // The small scripts only do what is most simple: the others make what they find.
        let kinds = [kind, if kind == "fast" { "redis" } else { kind }];
        let is_of = |call: &Call| kinds.iter().any(|kind| call.name.starts_with(kind));
        let all: Vec<_> = scripts.calls.iter().enumerate().filter(|(_, call)| is_of(call)).collect();
        // Most of what there is follows from what is taken.
        let takes: Vec<_> = all
            .iter()
            .filter(|(_, call)| ["ACQUIRE", "TAKE", "BEGIN"].iter().any(|name| call.name.contains(name)))
            .collect();
        let (number, call) =
            if self.chance(0.4) { *takes[self.below(takes.len())] } else { all[self.below(all.len())] };
        let token = self.below(TOKENS.len());
        let locks: Vec<&str> = (0..2).map(|_| ["a", "a", "b"][self.below(3)]).collect();
        let (mut keys, mut counts) = (Vec::new(), [0_usize; 128]);
        for kind in self.some_of(call.keys).split_whitespace() {
            let place = &mut counts[usize::from(kind.as_bytes()[0])];
            let lock = locks[*place % 2];
            *place += 1;
            keys.push(match kind {
                "L" => format!("{{0}}lock:{lock}"),
                "O" => format!("{{0}}once:{lock}"),
                "S" => format!("{{0}}seats:{lock}"),
                "Q" => format!("{{0}}line:{lock}"),
                "A" => format!("{{0}}away:{lock}"),
                "H" => format!("{{0}}held:{lock}"),
                "E" => format!("{{0}}ends:{lock}"),
                "V" => format!("{{0}}wide:{lock}"),
                "W" => format!("{{0}}watch:{lock}"),
                "M" => format!("{{0}}freed:{}", TOKENS[token]),
                "D" => "{0}due".to_owned(),
                "G" => "{0}gates".to_owned(),
                "F" => "{0}fence".to_owned(),
                _ => "{0}record".to_owned(),
            });
        }
        let args = self.some_of(call.args);
        let args = args.split_whitespace().map(|kind| self.argument(kind, token)).collect();
        Step::Script(number, keys, args)
    }

    /// What stands before one of the bars, or all of it.
    fn some_of(&mut self, kinds: &str) -> String {
        let parts: Vec<_> = kinds.split('|').collect();
        let count = 1 + self.below(parts.len());
        parts[..count].join(" ")
    }

    pub fn argument(&mut self, kind: &str, token: usize) -> String {
        let hash = |token: usize| TOKENS[token].repeat(32);
        let clock_us = CLOCK * 1_000_000;
        let of = |draw: &mut Self, words: &[&str]| draw.one(words);
        match kind {
            "T" if self.chance(0.1) => hash(self.below(TOKENS.len())),
            "T" => hash(token),
            // The first digit says whether it is a connection's, or its claim.
            "a" => of(self, &["1", "1", "2", "8", "c"]) + &format!("{token}{}", "5".repeat(30)),
            "ta" => format!("{} {} ", hash(token), self.argument("a", token)),
            "v" => format!(
                "{}{} {}",
                self.argument("ta", token),
                self.argument("#", token),
                self.argument("o", token)
            ),
            "e" | "s" if self.chance(0.6) => String::new(),
            "e" => self.argument("a", token),
            "s" => self.argument("a", token) + " ",
            "-" => String::new(),
            "m" => "100000000".to_owned(),
            "k" => "10000000".to_owned(),
            "t" => of(self, &["1000000", "3000000", "5000000"]),
            "mode" => of(self, &["confirm", "grant", "join", "join", "rejoin", "look", "end", "end-keep"]),
            "o" => of(self, &["", "somebody"]),
            "so" => of(self, &[" ", " somebody"]),
            "i" => of(self, &["run1", "run1", "run1", "run1", "run1", "run1-longer", "run2", OF_A_REPLICA]),
            "g" => of(self, &["gateway1", "gateway2"]),
            "n" => "2".to_owned(),
            "p" if self.chance(0.5) => String::new(),
            "#" | "p" => (clock_us + self.below(4) as u64).to_string(),
            "x" => of(self, &["", "", "2000000", "4000000"]),
            "slots" => of(self, &["1", "2", "2", "3", "1000"]),
            "b" => of(self, &["", "1760000000000", "1760000001000", "1760000000001"]),
            "c" => of(self, &["1", "1", "1", "1", "2", "3"]),
            "how" => of(self, &["connect", "all", "look"]),
            "u" => of(self, &["", "", "9000000000000000", "1"]),
            "U" => of(self, &["9000000000000000", "9000000000000000", "1"]),
            "B" => "b0".to_owned(),
            "gc" => of(self, &["grant", "grant", "confirm"]),
            "ch" => of(self, &["", "{0}channel"]),
            "f" => of(self, &["0", "1"]),
            // A number is known only to those who were told it; some are guessed.
            "o#" if self.chance(0.5) => String::new(),
            "o#" => self.argument("#", token),
            "keep" => of(self, &["3000000", "7000000"]),
            "okeep" => of(self, &["", "", "5000000"]),
            "memory" => "604000000".to_owned(),
            "print" => of(self, &["-", "-", "-", "f1f1"]),
            "cf" => of(self, &["0", "0", "0", "1"]),
            "status" => of(self, &["-", "0", "200"]),
            "result" => of(self, &["\n", "text/plain\nresult", "\nresult", "text/plain\nanother\nline"]),
            "room" => of(self, &["short", "short", "long", "no"]),
            "answer" => of(self, &["", "", "0", "1", "2"]),
            "list" => of(self, &["a,b", "a,b,c"]),
            "id" => of(self, &["", "id1"]),
            "kind" => of(self, &["join", "found", "restore", "store", "settle"]),
            "since" => of(self, &["0", "0", "1760000000000", "1760000000900"]),
            literal => literal.to_owned(),
        }
    }
}
