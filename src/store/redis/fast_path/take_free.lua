-- Takes locks that are free, or says that another holds them. It serves locks without a wait queue whose tokens have no
-- tombstones: these are most locks, most of the time. The rest goes to acquire.lua, which has far more to prepare. Each lock
-- is taken as if it were asked for alone.
--
-- KEYS for each lock three      ARGV[1] name of the server's run
--   the lock                     and for each lock two
--   seats                          token hash and attempt, with a space behind each
--   the token's tombstone          ttl, ms
-- and the fence                  and, where any has one, for each its owner, with a space before
--                                and, on a cluster, the part of ARGV[1] that is the server's replication id
--
-- Returns for each lock the number of the grant · { 2, lock, ms left, 0, 0 } where another holds it, as acquire.lua says it ·
--   -1 where nothing was done; and for one lock alone no array of these
--
-- Lua keeps each text once, and must read a new one to find out whether it has it. So this script makes few texts, and cuts
-- none into parts without need. A number as an argument of a command is written out digit by digit, a text is not.

local reply = {}
local locks = (#KEYS - 1) / 3
local fence = KEYS[#KEYS]
-- As in acquire.lua, which says why.
local replication_id = ARGV[3 * locks + 2]
local is_same = not replication_id
  or string.find(redis.call('INFO', 'replication'), 'master_replid:' .. replication_id, 1, true)
local free = 0

-- Locks that are to be taken have no reply yet. The script reads everything before it writes, and no value that it reads
-- ends it: the other locks are for other clients.
if is_same and redis.call('EXISTS', unpack(KEYS, 1, 3 * locks)) == 0 then
  free = locks
else
  for i = 1, locks do
    local key, tickets, tombstone = unpack(KEYS, 3 * i - 2, 3 * i)
    reply[i] = -1
    if is_same and redis.call('EXISTS', tickets, tombstone) == 0 then
      local lock = redis.pcall('GET', key)
      if not lock then
        reply[i], free = nil, free + 1
      -- An offer begins with a question mark, and has no holder.
      elseif type(lock) == 'string' and string.sub(lock, 1, 1) ~= '?'
        and string.sub(lock, 1, TOKEN_HASH_DIGITS) ~= string.sub(ARGV[2 * i], 1, TOKEN_HASH_DIGITS) then
        local left_ms = redis.call('PTTL', key)
        if left_ms > 0 then reply[i] = { 2, lock, left_ms, 0, 0 } end
      end
    end
  end
  if free == 0 then return locks == 1 and reply[1] or reply end
end

-- What the server refuses is left to acquire.lua, which has it tell each of them why.
local last = redis.pcall('HINCRBY', fence, ARGV[1], free == 1 and '1' or free)
local number = type(last) == 'number' and last - free or 0
-- Below, there is no run of numbers yet, and nothing may look like one.
local is_in_bounds = number >= SMALLEST_NUMBER and last <= LARGEST_NUMBER
if type(last) == 'number' and number < SMALLEST_NUMBER then redis.call('HDEL', fence, ARGV[1]) end
-- As in fence.lua, which says why.
if type(last) == 'number' and last > LARGEST_NUMBER then redis.call('HINCRBY', fence, ARGV[1], -free) end
for i = 1, locks do
  if not reply[i] then
    reply[i] = -1
    if is_in_bounds then
      number = number + 1
      local lock = ARGV[2 * i] .. string.format('%.0f', number) .. (ARGV[2 * locks + 1 + i] or ' ')
      -- One that is asked for twice is taken once.
      if redis.call('SET', KEYS[3 * i - 2], lock, 'NX', 'PX', ARGV[2 * i + 1]) then reply[i] = number end
    end
  end
end
return locks == 1 and reply[1] or reply
