//! Scripts with a mistake in one line: each is found by the sequences.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use super::first_difference;
use kit::{RedisServer, seed};

/// Many times as many as find any of them.
const MOST_SEQUENCES: u64 = 100_000;

/// What the mistake is, what stands in the scripts, and what stands there by mistake, which is shorter or as long.
const MUTANTS: [(&str, &str, &str); 14] = [
    ("a renewal shortens", "return math.max(left_ms, ttl_ms), false end", "return ttl_ms, false end"),
    ("a renewal of a pinned lock shortens", "if ttl_ms > left_ms then redis", "if true then redis"),
    ("max_hold is no limit", "local most_ms = terms_left(lock)", "local most_ms = nil"),
    (
        "min_hold is forgotten at a release",
        "if not least_ms or least_ms <= 0 then",
        "if least_ms or true then",
    ),
    ("a release leaves no tombstone", "set_tombstone(KEYS[7], outcome, ARGV[3])", ""),
    (
        "an attempt that is rolled back is not voided",
        "if voids then void(KEYS[7]",
        "if nil then void(KEYS[7]",
    ),
    ("another attempt's grant is rolled back", " and attempt_of(lock) == ARGV[2] then", " then"),
    ("a grant is broken by any number", "~= ARGV[5] then return { 2 }", "== '' then return { 2 }"),
    (
        "a look pins what a connection holds",
        "if by ~= PINNED and not is_of_connection(by) then",
        "if by ~= PINNED then",
    ),
    (
        "a confirmation takes the lock",
        "if MODE == 'confirm' and (not lock or was_held_by(lock, TOKEN)) then return { 3 } end",
        "if MODE == 'confirm' and not lock then MODE = 'grant' end",
    ),
    ("one who is refused loses its ticket", "queue.leave_place(TOKEN, ticket)", "queue.remove_place(TOKEN)"),
    ("a position is one too low", "rank and rank + 1 or 0, place", "rank or 0, place"),
    ("an offer is not passed on", "if offer and offer.token == token then hand_off() end", ""),
    ("a ticket has no end", "if #lost == 0 then return end", "do return end"),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_of_these_mistakes_in_a_script_is_found() {
    let seed = seed();
    for (name, stands, mistake) in MUTANTS {
        let server = RedisServer::start().await;
        let url = corrupted(&server, stands, mistake).await;
        let found = first_difference(&server, &url, seed, 0..MOST_SEQUENCES, Duration::MAX).await;
        println!("{name}: {}\n", found.unwrap_or_else(|| panic!("TEST_SEED={seed} not found: {name}")));
    }
}

/// The address of the server for one whose scripts have the mistake. The server never learns of a script by its own text, so the
/// text is sent with each call.
async fn corrupted(server: &RedisServer, stands: &'static str, mistake: &'static str) -> String {
    let mistake = format!("{mistake:width$}", width = stands.len());
    assert_eq!(mistake.len(), stands.len(), "the length of a text is sent before it");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, target) = (listener.local_addr().unwrap().port(), server.port());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
            let mistake = mistake.clone();
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                while from_client.read_buf(&mut bytes).await.is_ok_and(|length| length > 0) {
                    // No command ends with the beginning of the text, so the rest of it is on its way.
                    if (1..stands.len()).any(|length| bytes.ends_with(&stands.as_bytes()[..length])) {
                        continue;
                    }
                    for at in memchr::memmem::find_iter(&bytes.clone(), stands) {
                        bytes[at..at + stands.len()].copy_from_slice(mistake.as_bytes());
                    }
                    if to_server.write_all(&bytes).await.is_err() {
                        break;
                    }
                    bytes.clear();
                }
            });
        }
    });
    format!("redis://127.0.0.1:{port}")
}
