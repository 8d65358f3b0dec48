-- Grants the place of a worker, or says why not, or returns the result.
--
-- KEYS[1] the record                ARGV[1] token hash               ARGV[7] '1': a place that somebody had may be taken over
-- KEYS[2] the token's tombstone     ARGV[2] attempt                  ARGV[8] '1': the token's place is confirmed, never granted
-- KEYS[3] the fence                 ARGV[3] ttl, ms                  ARGV[9] '1': there is room for a new record
--                                   ARGV[4] keep, ms                 ARGV[10] incarnation of the server
--                                   ARGV[5] fingerprint, or a dash   ARGV[11] memory of a crash, ms
--                                   ARGV[6] owner, may be empty
--
-- Returns as told() in record.lua: 0 granted, now or by this attempt · 1 the token's already, and pinned now · 2 another works
--   3 may not be taken over · 4 done, with the whole record in place of its head
--   5 fingerprint differs, 6 token released, 7 attempt voided, 8 no room, 9 not ours (these alone)

local RECORD, TOKEN, ATTEMPT, MEMORY_MS = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[11])

local record = record_of(RECORD)
if record and not record.kind then return { 9 } end
if record and record.fingerprint ~= '-' and record.fingerprint ~= ARGV[5] then return { 5 } end
if record and record.kind == 'd' then
  record.head = redis.call('GET', RECORD)
  return told(4, RECORD, record)
end

local tombstone = redis.call('GET', KEYS[2])
local is_running = record and runs(record)
local is_own = record and record.token == TOKEN
-- A final tombstone begins with a digit. The rest of what lock.lua has is not needed here, and takes time to prepare.
if tombstone and string.find(tombstone, '^%d') then return { 6 } end
if ARGV[8] == '1' and not (is_own and is_running) then return { 6 } end
if tombstone and string.find(tombstone, ATTEMPT, 1, true) then return { 7 } end

if is_own and record.attempt == ATTEMPT then
  -- A copy of the same command: the same grant, which may still have to be undone. Where its lease is over, nobody waits for
  -- the answer to a copy.
  return is_running and told(0, RECORD, record) or { 7 }
end
if is_own and is_running then
  record.attempt, record.at_ms = '-', math.max(record.at_ms, lease_end(tonumber(ARGV[3])))
  rewrite(RECORD, record, MEMORY_MS)
  return told(1, RECORD, record)
end
if is_running then return told(2, RECORD, record) end

-- Who had the place before counts, unless that is done: nobody's place was counted when it was left.
local had_worker = record and record.token ~= NOBODY_HASH
local earlier = record and record.earlier + (had_worker and 1 or 0) or 0
local before = had_worker and record.digits or record and record.before or '0'
if earlier > 0 and ARGV[7] ~= '1' then return told(3, RECORD, record) end
if not record and ARGV[9] ~= '1' then return { 8 } end

-- Numbers are minted as in acquire.lua, which says why.
local replication_id = string.match(ARGV[10], '^%x+/(%x+)$')
if replication_id then
  local is_same = string.find(redis.call('INFO', 'replication'), 'master_replid:' .. replication_id, 1, true)
  if not is_same then return redis.error_reply('STALE the server was a replica in the meantime') end
end
local number = redis.call('HINCRBY', KEYS[3], ARGV[10], 1)
if number < SMALLEST_NUMBER then
  local run = run_of(KEYS[3], ARGV[10])
  if run then redis.call('HDEL', KEYS[3], ARGV[10]) end
  number = run and redis.call('HINCRBY', KEYS[3], run, 1) or start_run(KEYS[3], ARGV[10])
end
if number > LARGEST_NUMBER then
  return redis.error_reply('FENCE the clock of the server is too far ahead for a fencing number')
end
local granted = {
  token = TOKEN, attempt = ATTEMPT, digits = whole(number), at_ms = lease_end(tonumber(ARGV[3])), earlier = earlier,
  -- It stays what the first grant said.
  keep = ARGV[4], fingerprint = record and record.fingerprint or ARGV[5], before = before, owner = ARGV[6],
}
write(RECORD, granted, MEMORY_MS, record and redis.call('PTTL', RECORD) or 0)
return told(0, RECORD, granted)
