-- Takes a lock that is free, or says that somebody else holds it, where nobody waits for it and its token has no mark: so it
-- is with most locks, most of the time. The rest is acquire.lua's, which has far more to prepare than this takes.
--
-- KEYS[1] the lock    KEYS[2] seats   KEYS[3] the token's mark    KEYS[4] the fence
-- ARGV[1] token hash and attempt, with a space behind each   ARGV[2] ttl, ms   ARGV[3] incarnation of the server
-- ARGV[4] owner, with a space before, may be absent   ARGV[5] on a cluster, the part of ARGV[3] that is the server's replication id
--
-- Returns the number of the grant · { 2, lock, ms left, 0, 0 } where another holds it, as acquire.lua says it ·
--   -1 where nothing was done
--
-- Lua keeps each text once, and reads all of it to find out whether it has it: so there are few of them, and no part of one is
-- a text of its own without need. A number that a command is told is written out digit by digit, a text is not.

-- As in acquire.lua, which says why.
if ARGV[5] and not string.find(redis.call('INFO', 'replication'), 'master_replid:' .. ARGV[5], 1, true) then return -1 end
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 0 then
  local number = redis.call('HINCRBY', KEYS[4], ARGV[3], '1')
  -- The bounds of acquire.lua. Below, there is no run of numbers yet, and nothing may look like one.
  if number < 1000000000000000 then redis.call('HDEL', KEYS[4], ARGV[3]) end
  if number < 1000000000000000 or number > 9007199254740991 then return -1 end
  redis.call('SET', KEYS[1], ARGV[1] .. string.format('%d', number) .. (ARGV[4] or ' '), 'PX', ARGV[2])
  return number
end
if redis.call('EXISTS', KEYS[2], KEYS[3]) == 0 then
  local lock = redis.call('GET', KEYS[1])
  -- An offer begins with a question mark, and is nobody's lock.
  if lock and string.sub(lock, 1, 1) ~= '?' and string.sub(lock, 1, 64) ~= string.sub(ARGV[1], 1, 64) then
    local left_ms = redis.call('PTTL', KEYS[1])
    if left_ms > 0 then return { 2, lock, left_ms, 0, 0 } end
  end
end
return -1
