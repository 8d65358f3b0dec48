//! What a caller does from beginning to end: a few requests that follow from each other, with all that is known of
//! their answers. No episode leaves a lock behind.

use std::sync::atomic::{AtomicBool, Ordering};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::caller::Caller;
use crate::shared::numbers::Numbers;

/// The locks that all callers want.
const CONTENDED: [&str; 4] = ["contended-0", "contended-1", "contended-2", "contended-3"];
/// What keys may have in them that is not as it is in an address, or in JSON.
const ODD: [&str; 6] = ["", "a/b", "..", "}{ 100%", "\"\\", "百家号：ü"];
/// Longer than anything here takes: the same on all stores.
const TTL: &str = "ttl=1m";

/// What callers know of each other.
#[derive(Default)]
pub struct Stage {
    numbers: Numbers,
    is_held: [AtomicBool; CONTENDED.len()],
}

/// A lock that nobody else knows of, and where it is asked for.
struct Lock {
    key: String,
    target: String,
}

impl Lock {
    fn new(caller: &Caller) -> Self {
        let odd = ODD[usize::from(rand::random::<u8>()) % ODD.len()];
        let key = caller.fresh(&format!("{odd}bench"));
        let encoded = utf8_percent_encode(&key, NON_ALPHANUMERIC);
        let target = match rand::random() {
            true => format!("/locks/{encoded}?"),
            false => format!("/lock?key={encoded}&"),
        };
        Self { key, target }
    }

    fn with(&self, parameters: &str) -> String {
        format!("{}{parameters}", self.target)
    }

    fn plain(&self) -> &str {
        self.target.trim_end_matches(['?', '&'])
    }
}

/// Plays one of them.
pub async fn any(caller: &mut Caller, stage: &Stage) -> Result<(), String> {
    match rand::random::<u8>() % 16 {
        0..6 => pair(caller).await,
        6..10 => contend(caller, stage).await,
        10..12 => retry(caller).await,
        12..14 => meddle(caller).await,
        14 => ask_for_what_is_not(caller).await,
        _ => misspell(caller).await,
    }
}

async fn pair(caller: &mut Caller) -> Result<(), String> {
    let Lock { key, target } = &Lock::new(caller);
    let plain = target.trim_end_matches(['?', '&']);
    let (token, _) = caller.call("PUT", plain, None).await?.granted(201, key, None)?;
    caller.call("DELETE", plain, Some(&token)).await?.released(key)
}

/// One lock for all: at most one has it, and its numbers grow.
async fn contend(caller: &mut Caller, stage: &Stage) -> Result<(), String> {
    let at = usize::from(rand::random::<u8>()) % CONTENDED.len();
    let key = CONTENDED[at];
    let target = format!("/locks/{key}");
    let before = stage.numbers.largest(key);
    let answer = caller.call("PUT", &format!("{target}?{TTL}"), None).await?;
    if answer.status == 423 {
        let number = answer.refused(key)?;
        // Whoever was told of a number before this was asked had the lock then, or had given it back.
        return if number >= before {
            Ok(())
        } else {
            Err(format!("{key}: {number} holds it, after {before}"))
        };
    }
    let (token, number) = answer.granted(201, key, None)?;
    if stage.is_held[at].swap(true, Ordering::Relaxed) {
        return Err(format!("{key}: granted with {number} while somebody else holds it"));
    }
    stage.numbers.granted(key, before, number)?;
    let renewed = caller.call("PATCH", &format!("{target}?{TTL}"), Some(&token)).await?;
    let renewed = renewed.granted(200, key, Some(&token))?.1;
    if renewed != number {
        return Err(format!("{key}: renewed with {renewed}, and granted with {number}"));
    }
    stage.is_held[at].store(false, Ordering::Relaxed);
    caller.call("DELETE", &target, Some(&token)).await?.released(key)
}

/// A client with a token of its own, that repeats everything.
async fn retry(caller: &mut Caller) -> Result<(), String> {
    let (lock, token) = (Lock::new(caller), caller.fresh("token-of-my-own"));
    let (key, token) = (&lock.key, Some(token.as_str()));
    let (_, number) = caller.call("PUT", &lock.with(TTL), token).await?.granted(201, key, token)?;
    for method in ["PUT", "PATCH", "PUT"] {
        let (_, again) = caller.call(method, &lock.with(TTL), token).await?.granted(200, key, token)?;
        if again != number {
            return Err(format!("{key:?}: {again} is told after {number}"));
        }
    }
    caller.call("GET", lock.plain(), token).await?.held(key, number, Some(true))?;
    caller.call("DELETE", lock.plain(), token).await?.released(key)?;
    caller.call("DELETE", lock.plain(), token).await?.released(key)?;
    caller.call("PUT", &lock.with(TTL), token).await?.problem(key, 409, "token-released")
}

/// Somebody else's token takes nothing, and ends nothing.
async fn meddle(caller: &mut Caller) -> Result<(), String> {
    let (lock, other) = (Lock::new(caller), caller.fresh("token-of-another"));
    let (key, other) = (&lock.key, Some(other.as_str()));
    let (token, number) = caller.call("PUT", lock.plain(), None).await?.granted(201, key, None)?;
    let told = caller.call("PUT", &lock.with("wait=0s"), None).await?.refused(key)?;
    if told != number {
        return Err(format!("{key:?}: held with {number}, and {told} is told"));
    }
    caller.call("PATCH", &lock.with(TTL), other).await?.problem(key, 409, "held-by-another")?;
    caller.call("GET", lock.plain(), other).await?.held(key, number, Some(false))?;
    caller.call("DELETE", lock.plain(), other).await?.problem(key, 409, "held-by-another")?;
    caller.call("GET", lock.plain(), None).await?.held(key, number, None)?;
    caller.call("DELETE", lock.plain(), Some(&token)).await?.released(key)
}

async fn ask_for_what_is_not(caller: &mut Caller) -> Result<(), String> {
    let (lock, token) = (Lock::new(caller), caller.fresh("token-of-nothing"));
    let (key, token) = (&lock.key, Some(token.as_str()));
    caller.call("GET", lock.plain(), None).await?.problem(key, 404, "not-held")?;
    caller.call("PATCH", &lock.with(TTL), token).await?.problem(key, 404, "not-held")?;
    caller.call("DELETE", lock.plain(), token).await?.problem(key, 404, "not-held")
}

async fn misspell(caller: &mut Caller) -> Result<(), String> {
    let lock = Lock::new(caller);
    let key = &lock.key;
    caller.call("PUT", &lock.with("tll=5s"), None).await?.problem(key, 400, "bad-parameter")?;
    caller.call("PUT", &lock.with("ttl=5"), None).await?.problem(key, 400, "bad-parameter")?;
    caller.call("PATCH", &lock.with(TTL), None).await?.problem(key, 400, "token-required")?;
    caller.call("GET", lock.plain(), None).await?.problem(key, 404, "not-held")
}
