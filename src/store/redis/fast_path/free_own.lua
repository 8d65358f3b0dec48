-- Frees locks that their tokens hold, if they have no wait queue and no terms. The rest goes to release.lua. A token that
-- holds a lock has no final tombstone, and a final one refuses voided attempts too. Each lock is freed as if it were asked
-- for alone.
--
-- KEYS the locks, then the seats of each, then the tombstones of the first tokens, as many as are to have one
-- ARGV[1] life of the tombstones, ms, and for each lock the token hash
--
-- Returns for each lock the number of the grant that it ended, as a text · -1 where nothing was done; and for one lock alone no
--   array of these
--
-- As in take_free.lua there are few texts, and no numbers, and nothing is written before all is read. Redis keeps small numbers
-- once for all, so a tombstone of one digit costs no value.

local locks = #ARGV - 1
local reply = redis.call('MGET', unpack(KEYS, 1, locks))
local have_no_line = redis.call('EXISTS', unpack(KEYS, locks + 1, 2 * locks)) == 0
local own = {}
for i = 1, locks do
  local lock, key = reply[i], KEYS[i]
  local is_own = lock and string.find(lock, ARGV[i + 1], 1, true) == 1
  local number = is_own and string.match(lock, '^(%d+) ', NUMBER_AT)
  if number and (have_no_line or redis.call('EXISTS', KEYS[locks + i]) == 0) then
    reply[i], own[#own + 1] = number, key
  else
    reply[i] = -1
  end
end
if #own == 0 then return locks == 1 and reply[1] or reply end

-- Fewer than that where one was asked for twice. What the server refuses is left to release.lua, which has it tell each why.
local freed = redis.pcall('DEL', unpack(own))
if freed ~= #own then
  local is_freed = {}
  for i = 1, locks do
    local key = KEYS[i]
    if type(freed) ~= 'number' or is_freed[key] then reply[i] = -1 end
    is_freed[key] = is_freed[key] or reply[i] ~= -1
  end
end
for i = 1, #KEYS - 2 * locks do
  if reply[i] ~= -1 then redis.call('SET', KEYS[2 * locks + i], '0', 'PX', ARGV[1]) end
end
return locks == 1 and reply[1] or reply
