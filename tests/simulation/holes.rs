//! Holes that are put back into the scripts on purpose: each must be found.

use sim::MISTAKES;

use crate::settings::Store;

/// What is wrong, in which store, what stands in the scripts, and what stands there in its place.
const MORE: [(&str, Store, &str, &str); 21] = [
    (
        "a late copy of a voided attempt is granted",
        Store::Redis,
        "if is_voided and not has_claimed and (claims or not ends) then return { 4 } end",
        "",
    ),
    ("a released token is granted again", Store::Redis, "if is_final(tombstone) then return { 3 } end", ""),
    (
        "an attempt that is superseded may still be granted",
        Store::Redis,
        "if superseded ~= '' then tombstone = void(KEYS[7], tombstone, superseded, ARGV[3]) end",
        "",
    ),
    (
        "a lock that was told of twice is not pinned",
        Store::Redis,
        "if not is_of_connection(attempt) then return PINNED end",
        "if not is_of_connection(attempt) then return attempt end",
    ),
    (
        "after a loss numbers begin where they began before",
        Store::Redis,
        "local start = time[1] * 1000000 + time[2]",
        "local start = 1760000000000000",
    ),
    (
        "another's lock is renewed",
        Store::Redis,
        "if token_of(lock) ~= ARGV[1] then return",
        "if nil then return",
    ),
    (
        "another's lock is released",
        Store::Redis,
        "local frees = lock and token_of(lock) == ARGV[1]",
        "local frees = lock",
    ),
    (
        "a lock that is held is granted",
        Store::Redis,
        "if not lock and (MODE == 'grant' or joins) then",
        "if MODE == 'grant' or joins then",
    ),
    ("a heartbeat tells nothing that is due", Store::Redis, "for i = 1, #due, 2 do", "for i = 1, 0 do"),
    ("a gateway that was forgotten is not told so", Store::Redis, "is_new and 1 or 0", "0"),
    ("nobody is told of an offer", Store::Redis, "tell(offer.gateway, 'offered '", "tell(NOBODY, 'offered '"),
    (
        "the lock of a gateway that is gone is offered to its waiters",
        Store::Redis,
        "is_heard[i] = heartbeat_ms and heartbeat_ms >= since_ms and heartbeat_ms <= NOW_MS + HEARD_WITHIN_MS",
        "is_heard[i] = true",
    ),
    (
        "an offer never lapses",
        Store::Redis,
        "queue.NOW_MS - offer.start_ms >= OFFER_MS and offer or nil",
        "nil",
    ),
    (
        "a failover starts no run of numbers",
        Store::Sentinel,
        "goes_on = run and known and (epoch == known or ARGV[3] == 'look')",
        "goes_on = run",
    ),
    (
        "after a failover numbers go on from those that were copied",
        Store::Sentinel,
        "local start = time[1] * 1000000 + time[2]",
        "local start = 1760000000000000",
    ),
    ("a look starts a run too", Store::Sentinel, "(epoch == known or ARGV[3] == 'look')", "epoch == known"),
    (
        "a run of numbers starts at the clock alone",
        Store::Cluster,
        "start = math.max(start, (tonumber(before[i]) or 0) + 1)",
        "",
    ),
    (
        "a release leaves a tombstone only where it finds the lock",
        Store::Quorum,
        "if leaves_tombstone then set_tombstone(KEYS[3], outcome, ARGV[6]) end",
        "if leaves_tombstone and frees then set_tombstone(KEYS[3], outcome, ARGV[6]) end",
    ),
    (
        "a repeated release is answered anew",
        Store::Quorum,
        "if is_final(tombstone) then return { 10 + tonumber(tombstone) } end",
        "",
    ),
    ("a server takes any number", Store::Quorum, "if number <= high", "if number < 0"),
    ("a token is not compared at a release", Store::Quorum, "token_of(lock) == ARGV[5]", "true"),
];

/// All of them.
pub fn all() -> impl Iterator<Item = (&'static str, Store, &'static str, &'static str)> {
    let known = MISTAKES.into_iter().map(|(name, stands, mistake)| (name, Store::Redis, stands, mistake));
    known.chain(MORE)
}

/// What stands in the scripts, and what in its place, for the hole of this name.
pub fn named(name: &str) -> (&'static str, &'static str) {
    let found = all().find(|(known, ..)| *known == name);
    let (.., stands, mistake) = found.unwrap_or_else(|| panic!("SIM_HOLE={name}: there is no such hole"));
    (stands, mistake)
}
