-- Says what a server remembers, and keeps up what gateways must know if it forgets.
--
-- KEYS[1] the server's record   ARGV[1] run                 ARGV[3] list of servers
--                               ARGV[2] epoch of the list   ARGV[4] ms that a lease can last, the attempt included
--
-- Returns { standing, now, since, longest, born, settled, epoch, members, before }, times in µs and ms by the server's clock:
--   0 it is part of the quorum, or in quarantine since then · 1 it has no record · 2 its record is of another run, and what
--   it holds may be of any time: that it was written to a disk before is no proof of being all that was accepted
--   3 it knows a later list · 4 it knows another list of this epoch · 5 it knows an earlier list

local function whole(number) return string.format('%.0f', number) end

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local fields = redis.call('HMGET', KEYS[1], 'run', 'epoch', 'members', 'since', 'longest', 'born', 'settled', 'before')
local run, epoch, members, since, longest, born, settled, before = unpack(fields, 1, 8)

local function answer(standing)
  local told = { standing, whole(now_us), since or '0', longest or '0', born and 1 or 0, settled or '0', epoch or '0' }
  local of, came_from = string.match(before or '', '^(%d+) (%d+)$')
  told[8], told[9] = members or '', of == epoch and came_from or '0'
  return told
end

if not run then return answer(1) end
if tonumber(epoch) > tonumber(ARGV[2]) then return answer(3) end
if epoch == ARGV[2] and members ~= ARGV[3] then return answer(4) end
if run ~= ARGV[1] then return answer(2) end
if epoch ~= ARGV[2] then return answer(5) end
if tonumber(longest) < tonumber(ARGV[4]) then
  longest = ARGV[4]
  -- For a server that is out of memory, as in reconfigure.lua.
  redis.call('HDEL', KEYS[1], '')
  redis.call('HSET', KEYS[1], 'longest', longest)
end
return answer(0)
