-- Frees locks that their tokens hold, if no gateway waits to be told of it and they have no terms, and leaves no tombstones. The
-- rest goes to release.lua. Each lock is freed as if it were asked for alone.
--
-- KEYS[1] the server's record     ARGV[1] run by which the gateway knows the server
-- then the locks,                 ARGV[2] epoch of the list of servers
-- then who waits for each         and for each lock the token hash
--
-- Returns for each lock the number of the grant that it ended, as a text · -1 where nothing was done; and for one lock alone no
--   array of these

local locks = #ARGV - 2
local reply, own, is_own = {}, {}, {}
for i = 1, locks do reply[i] = -1 end
-- As in member.lua.
local record = redis.call('HMGET', KEYS[1], 'run', 'epoch', 'since')
if record[1] == ARGV[1] and record[2] == ARGV[2] and record[3] == '0' then
  local found = redis.call('MGET', unpack(KEYS, 2, locks + 1))
  local waits_nobody = redis.call('EXISTS', unpack(KEYS, locks + 2)) == 0
  for i = 1, locks do
    local lock, key = found[i], KEYS[i + 1]
    local number = lock and string.find(lock, ARGV[i + 2], 1, true) == 1 and string.match(lock, '^(%d+) ', NUMBER_AT)
    -- One that is asked for twice is freed once.
    if number and not is_own[key] and (waits_nobody or redis.call('EXISTS', KEYS[locks + 1 + i]) == 0) then
      reply[i], own[#own + 1], is_own[key] = number, key, true
    end
  end
  -- What the server refuses is left to release.lua, which has it tell each of them why.
  if #own > 0 and type(redis.pcall('DEL', unpack(own))) ~= 'number' then
    for i = 1, locks do reply[i] = -1 end
  end
end
return locks == 1 and reply[1] or reply
