//! What servers are asked of one lock, and what they answer, for who must understand a seed: `SIM_LOCK` names the lock.

use std::env;

use kit::history::now_us;
use sim::{Fleet, Reply};

/// A token's hash and an attempt have at least as many digits. The first ones tell them apart.
const LONG: usize = 32;
const KEPT: usize = 6;

/// Prints each command of that lock, if the environment names one.
pub fn listen(fleet: &Fleet) {
    let Ok(lock) = env::var("SIM_LOCK") else { return };
    let name = format!(":{lock}");
    for (at, server) in fleet.servers.iter().enumerate() {
        let name = name.clone();
        server.set_listener(move |words, reply| {
            let words: Vec<_> = words.iter().map(|word| shown(word)).collect();
            if words.iter().any(|word| word.ends_with(&name)) {
                println!("{} server {at}: {} → {}", now_us(), words.join(" "), said(reply));
            }
        });
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_long = |word: &str| word.len() >= LONG && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = text.split(' ').map(|word| if is_long(word) { &word[..KEPT] } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn said(reply: &Reply) -> String {
    match reply {
        Reply::Array(replies) => format!("[{}]", replies.iter().map(said).collect::<Vec<_>>().join(", ")),
        Reply::Bulk(bytes) => format!("'{}'", shown(bytes)),
        Reply::Int(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}
