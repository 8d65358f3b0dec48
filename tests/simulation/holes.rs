//! Holes that are put back into the scripts on purpose: each must be found.

use sim::{MISTAKES, scripts};

use crate::settings::Store;

/// What is wrong, in which store, what stands in the scripts, and what stands there in its place.
const MORE: [(&str, Store, &str, &str); 22] = [
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
        "if superseded ~= '' then tombstone = void(KEYS[10], tombstone, superseded, ARGV[3]) end",
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
        "if token_of(lock) ~= token then return",
        "if nil then return",
    ),
    (
        "another's lock is released",
        Store::Redis,
        "local frees = own or lock and token_of(lock) == ARGV[1]",
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
    ("a server takes any number", Store::Quorum, "return number <= high", "return number < 0"),
    ("a token is not compared at a release", Store::Quorum, "token_of(lock) == ARGV[5]", "true"),
    (
        "in short, a lock is taken for any token",
        Store::Quorum,
        "if not are_free and redis.call('EXISTS', tombstone) == 0 then",
        "if not are_free then",
    ),
];

/// The same in the scripts of records.
const OF_RECORDS: [(&str, &str, &str); 33] = [
    (
        "the memory of a crash is as short as the keep of its begin",
        "math.max(record.at_ms - NOW_MS, 0) + memory_ms)",
        "math.max(record.at_ms - NOW_MS, 0) + tonumber(record.keep))",
    ),
    ("a take-over is not counted", "record.earlier + (had_worker and 1 or 0) or 0", "record.earlier or 0"),
    (
        "a worker that gives up is not counted",
        "if not is_clean then record.earlier, record.before = record.earlier + 1, record.digits end",
        "",
    ),
    (
        "who leaves cleanly takes those before it along",
        "if is_clean and record.earlier == 0 then",
        "if is_clean then",
    ),
    (
        "a break is not counted",
        "leave(KEYS[1], record, false, tonumber(ARGV[3]))",
        "redis.call('DEL', KEYS[1])",
    ),
    (
        "a record is broken by any number",
        "if record.digits ~= ARGV[1] then return { 3, record.digits } end",
        "",
    ),
    (
        "a place that was given up is granted by the same number",
        "digits = whole(number)",
        "digits = record and record.token == NOBODY_HASH and record.digits or whole(number)",
    ),
    (
        "a fingerprint is not compared with that of a result",
        "if needed ~= '-' and needed ~= string.match(end_of_line, '^ 0 %d+ (%S+)') then return { 5 } end",
        "",
    ),
    (
        "a fingerprint is not compared at a take-over",
        "if record and record.fingerprint ~= '-' and",
        "if record and runs(record) and record.fingerprint ~= '-' and",
    ),
    (
        "a take-over binds a record to its fingerprint",
        "fingerprint = record and record.fingerprint or fingerprint",
        "fingerprint = fingerprint",
    ),
    (
        "a result is taken after a take-over",
        "if string.sub(start, 1, 1) == 'w' and string.find(start, token, 2, true) == 2 then",
        "if string.sub(start, 1, 1) == 'w' then",
    ),
    (
        "another result is told to be stored",
        "status or told(RECORD) ~= (ASIDE and told(ASIDE) or result) then",
        "status then",
    ),
    (
        "a long result that is stored once more differs from itself",
        "told(RECORD) ~= (ASIDE and told(ASIDE) or result)",
        "told(RECORD) ~= result",
    ),
    ("a long result ends as what was put aside", "redis.call('PEXPIRE', RECORD, keep)", ""),
    ("the status of a result is not compared", "if record.status ~= status or told", "if told"),
    (
        "a result is kept as the begin said, whatever is said with it",
        "local keep = keep_ms ~= '' and keep_ms or worker_keep",
        "local keep = worker_keep",
    ),
    ("a worker's number is not compared", "(number == '' or number == record.digits)", "true"),
    (
        "nobody's place has superseded its worker",
        "if not record or record.token == NOBODY_HASH then return 2, '' end",
        "if not record then return 2, '' end",
    ),
    (
        "a begin that is undone deletes what others did before",
        "if is_its then leave(KEYS[1], record, true, tonumber(ARGV[3])) end",
        "if is_its then redis.call('DEL', KEYS[1]) end",
    ),
    (
        "another attempt's begin is undone",
        "record.token == ARGV[1] and record.attempt == ARGV[2]\nif is_its",
        "record.token == ARGV[1]\nif is_its",
    ),
    (
        "a begin that is undone is not voided",
        "void(KEYS[2], tombstone, ARGV[2], ARGV[4])\n-- As in",
        "-- As in",
    ),
    (
        "a late copy of a voided begin begins",
        "if tombstone and string.find(tombstone, ATTEMPT, 1, true) then return { 7 } end",
        "",
    ),
    (
        "a token that gave up begins again",
        "if tombstone and string.find(tombstone, '^%d') then return { 6 } end",
        "",
    ),
    (
        "a token that gave up leaves no tombstone",
        "if leaves_tombstone then set_tombstone(KEYS[2], whole",
        "if nil then set_tombstone(KEYS[2], whole",
    ),
    (
        "a token that gives up again is answered anew",
        "if is_final(tombstone) then\n    redis.call('PEXPIRE'",
        "if nil then\n    redis.call('PEXPIRE'",
    ),
    (
        "a token that a gateway made begins",
        "if only_confirms and not (is_own and is_running) then return { 6 } end",
        "",
    ),
    (
        "a place that was told of twice is not pinned",
        "record.attempt, record.at_ms = '-', math.max(record.at_ms, lease_end(tonumber(ttl_ms)))\n    rewrite",
        "record.at_ms = math.max(record.at_ms, lease_end(tonumber(ttl_ms)))\n    rewrite",
    ),
    (
        "a look of a worker does not pin its place",
        "if record.token == ARGV[1] and record.attempt ~= '-' then",
        "if nil then",
    ),
    ("a renewal revives a lease", "if not runs(record) then return { 5 } end", ""),
    (
        "a renewal of a place shortens its lease",
        "math.max(record.at_ms, lease_end(tonumber(ARGV[3])))\nrewrite",
        "lease_end(tonumber(ARGV[3]))\nrewrite",
    ),
    (
        "a place is granted while its worker is at work",
        "if is_running then return told(2, RECORD, record) end",
        "",
    ),
    (
        "who may not take over takes over",
        "if earlier > 0 and string.sub(may, 1, 1) ~= '1' then return told(3, RECORD, record) end",
        "",
    ),
    (
        "whoever asks is told that the place is its own",
        "local is_own = record and record.token == TOKEN",
        "local is_own = record and record.kind == 'w'",
    ),
];

/// The same in the scripts of locks that several hold. What one bears is how many it said may hold the lock.
const OF_SLOTS: [(&str, &str, &str); 21] = [
    (
        "those who ask do not count what they bear",
        "return held < math.min(fewest, slots)",
        "return held < fewest",
    ),
    (
        "those who hold do not count what they bear",
        "return held < math.min(fewest, slots)",
        "return held < slots",
    ),
    (
        "an offer of a slot takes none",
        "if offer.token ~= token then held, fewest",
        "if nil then held, fewest",
    ),
    (
        "what was offered is taken though it bears fewer now",
        "is_mine_next = pool.admits(SLOTS, TOKEN)",
        "is_mine_next = true",
    ),
    (
        "who holds beside others is told that it holds alone",
        "if own and own.slots > SLOTS then",
        "if nil then",
    ),
    (
        "what is over counts for ever",
        "redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW_MS)) do\n      local slot",
        "{}) do\n      local slot",
    ),
    ("a slot is never free again", "    set_slot(grant.slot, '.')", ""),
    (
        "a new one has the last slot",
        "string.find(pool.taken, '.', 1, true) or #pool.taken + 1",
        "math.max(#pool.taken, 1)",
    ),
    ("what a holder that has left bore counts for ever", "redis.call('ZREM', WIDE, grant.field)", ""),
    (
        "a slot is freed before its min_hold",
        "remove(grant)\n    if not least_ms or least_ms <= 0 then return nil end",
        "remove(grant)\n    do return nil end",
    ),
    (
        "whoever comes while there is room is let in before those who wait",
        "is_line_over and not offer and (not pool or pool.admits(SLOTS))",
        "has_room and not offer and (not pool or pool.admits(SLOTS))",
    ),
    (
        "behind one for whom there is no room, others are offered slots",
        "not pool.has_room_for_offers() then\n          is_over = true",
        "not pool.has_room_for_offers() then\n          aside = aside",
    ),
    (
        "nothing is offered after a release",
        "if queue then queue.hand_off(pool) else",
        "if queue then return { outcome } else",
    ),
    (
        "another attempt's slot is taken back",
        "and token_of(lock) == ARGV[1] and attempt_of(lock) == ARGV[2]",
        "and token_of(lock) == ARGV[1] and (own or attempt_of(lock) == ARGV[2])",
    ),
    (
        "a slot that was told of twice is not pinned",
        "pool.put(own, with_attempt(lock, once_told(ATTEMPT)), ttl_ms)",
        "pool.put(own, lock, ttl_ms)",
    ),
    (
        "a renewal of a slot does not pin it",
        "rewrite_grant(FOUR, own, with_attempt(own.lock, by), seen.NOW_MS, length_ms)",
        "rewrite_grant(FOUR, own, own.lock, seen.NOW_MS, length_ms)",
    ),
    (
        "a slot that has ended is renewed",
        "if not ends_ms or ends_ms <= NOW_MS then return nil end",
        "if not ends_ms then return nil end",
    ),
    ("a break ends any slot", "(%d+)') == digits", "(%d+)')"),
    // Of the fast path, which does the same.
    (
        "in short, those who hold do not count what they bear",
        "if count < math.min(least, slots) then",
        "if count < slots then",
    ),
    (
        "in short, those who wait are passed",
        "local absent, fields = { tickets }",
        "local absent, fields = { _ }",
    ),
    (
        "in short, a slot that has ended is renewed",
        "if not ends_ms or ends_ms <= NOW_MS then return -1 end",
        "if not ends_ms then return -1 end",
    ),
];

/// All of them.
pub fn all() -> impl Iterator<Item = (&'static str, Store, &'static str, &'static str)> {
    let known = MISTAKES.into_iter().map(|(name, stands, mistake)| (name, Store::Redis, stands, mistake));
    let of_records =
        OF_RECORDS.into_iter().map(|(name, stands, mistake)| (name, Store::Redis, stands, mistake));
    let of_slots = OF_SLOTS.into_iter().map(|(name, stands, mistake)| (name, Store::Redis, stands, mistake));
    known.chain(MORE).chain(of_records).chain(of_slots)
}

/// What stands in the scripts, and what in its place, for the hole of this name.
pub fn named(name: &str) -> (&'static str, &'static str) {
    let found = all().find(|(known, ..)| *known == name);
    let (.., stands, mistake) = found.unwrap_or_else(|| panic!("SIM_HOLE={name}: there is no such hole"));
    (stands, mistake)
}

/// A hole whose place has changed would be no hole, and never found.
pub fn each_stands_in_a_script() {
    let scripts = scripts().unwrap();
    let is_gone = |stands: &str| !scripts.contains(stands);
    let gone: Vec<_> = all().filter(|(.., stands, _)| is_gone(stands)).map(|(name, ..)| name).collect();
    assert!(gone.is_empty(), "these stand in no script: {gone:?}");
}
