-- Takes a lock, or says why not.
--
-- KEYS[1] the lock            ARGV[1] token hash, 64 hex digits
-- KEYS[2] the token's mark    ARGV[2] attempt, 32 hex digits
-- KEYS[3] the fence           ARGV[3] ttl, ms
--                             ARGV[4] owner, may be empty
--                             ARGV[5] incarnation of the server
--                             ARGV[6] '1': a free lock may be granted, '0': the token may only be confirmed
--
-- Returns { outcome, lock, ms left }:
--   0 granted · 1 already held, and pinned now · 2 held by another
--   3 token released, 4 attempt voided (these two alone)

-- A run begins at a time in microseconds, so every number of one is above this: September 2001.
local SMALLEST_NUMBER = 1000000000000000
local LARGEST_NUMBER = 9007199254740991

local mark = redis.call('GET', KEYS[2])
if is_final(mark) then return { 3 } end
if mark and string.find(mark, ARGV[2], 1, true) then return { 4 } end

local lock, left_ms = held(KEYS[1])
if lock then
  if token_of(lock) ~= ARGV[1] then return { 2, lock, left_ms } end
  -- The same attempt is a copy of the same command: the same grant, which may still have to be taken back.
  if attempt_of(lock) == ARGV[2] then return { 0, lock, left_ms } end
  local ttl_ms = math.max(left_ms, tonumber(ARGV[3]))
  return { 1, pin(KEYS[1], lock, ttl_ms), ttl_ms }
end

if ARGV[6] ~= '1' then return { 3 } end

local number = redis.call('HINCRBY', KEYS[3], ARGV[5], 1)
-- 1 means that this incarnation has no run here: first use, restart, failover or flush. A bit more means that a
-- script failed while it started the run, and what it had counted stayed.
if number < SMALLEST_NUMBER then number = start_run(KEYS[3], ARGV[5]) end
if number > LARGEST_NUMBER then
  return redis.error_reply('FENCE the clock of the server is too far ahead for a fencing number')
end
lock = ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. string.format('%.0f', number) .. ' ' .. ARGV[4]
redis.call('SET', KEYS[1], lock, 'PX', ARGV[3])
return { 0, lock, tonumber(ARGV[3]) }
