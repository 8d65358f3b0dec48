-- Says what a server remembers, and keeps up what gateways must know if it forgets.
--
-- KEYS[1] the server's record   ARGV[1] run                 ARGV[3] list of servers
--                               ARGV[2] epoch of the list   ARGV[4] ms that a lease can last, the attempt included
--                                                           ARGV[5] 1 if what the server evicts is to be ignored
--                                                           ARGV[6] id of the quorum, as far as the gateway knows it
--
-- Returns { standing, now, since, longest, born, settled, epoch, members, before, served, quorum }, times in µs and ms by the server's
-- clock:
--   0 it is part of the quorum, or in quarantine since then · 1 it has no record · 2 its record is of another run, and what
--   it holds may be of any time: that it was written to a disk before is no proof of being all that was accepted; or it has evicted keys
--   3 it knows a later list · 4 it knows another list of this epoch · 5 it knows an earlier list

-- How much of a quarantine may go by between two looks, in ms. A clock may be set forward at any moment, above all after a boot: to count
-- begins as much too late, so that one such step makes the quarantine no shorter.
local MOST_BETWEEN_LOOKS_MS = 2500

local function whole(number) return string.format('%.0f', number) end

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local fields = redis.call('HMGET', KEYS[1], 'run', 'epoch', 'members', 'since', 'longest', 'born', 'settled', 'before',
  'served', 'evictions', 'quorum')
local run, epoch, members, since, longest, born, settled, before, served, evictions, quorum = unpack(fields, 1, 11)

local function answer(standing)
  local told = { standing, whole(now_us), since or '0', longest or '0', born or '0', settled or '0', epoch or '0' }
  local of, came_from = string.match(before or '', '^(%d+) (%d+)$')
  told[8], told[9], told[10], told[11] = members or '', of == epoch and came_from or '0', served or '0', quorum or ''
  return told
end

if not run then return answer(1) end
if tonumber(epoch) > tonumber(ARGV[2]) then return answer(3) end
if epoch == ARGV[2] and members ~= ARGV[3] then return answer(4) end
if run ~= ARGV[1] then return answer(2) end
-- Another quorum's is left as it is. So is any that has an id for as long as the gateway knows none: until then it does not count.
-- It may refuse to write for now, as with a full disk. Without a write, it goes by what it has. HDEL is for one that is out of memory, as
-- in reconfigure.lua.
local is_ours = not quorum or quorum == ARGV[6]
local function may_write() return is_ours and type(redis.pcall('HDEL', KEYS[1], '')) == 'number' end
-- What it evicts may be a lock or a tombstone, and the record stays. Then the record is made that of no run, so that all scripts and all
-- versions take the server for one that forgot. In quarantine, which each begins with, it has nothing to lose. At 0, where the count
-- was reset, there is nothing to compare. Where none was noted of this process, a version has let it in that notes none.
local count = string.match(redis.call('INFO', 'stats'), '\nevicted_keys:(%d+)') or '0'
local counted = ARGV[1] .. ' ' .. whole(count)
if ARGV[5] ~= '1' and counted ~= evictions then
  local has_forgotten = since == '0' and count ~= '0'
  if may_write() then redis.call('HSET', KEYS[1], 'run', has_forgotten and 'evicted' or run, 'evictions', counted) end
  if has_forgotten then return answer(2) end
end
if epoch ~= ARGV[2] then return answer(5) end
if tonumber(longest) < tonumber(ARGV[4]) and may_write() then
  longest = ARGV[4]
  redis.call('HSET', KEYS[1], 'longest', longest)
end
if since ~= '0' then
  local now_ms = math.floor(now_us / 1000)
  -- Its clock was set back behind the beginning: the quarantine begins anew, and lasts no longer than any.
  if now_ms < tonumber(since) and may_write() then
    since = whole(now_ms)
    redis.call('HSET', KEYS[1], 'since', since)
  end
  local of, gone_ms, seen_ms = string.match(served or '', '^(%d+) (%d+) (%d+)$')
  local has_begun = of == since
  if not has_begun then gone_ms, seen_ms = 0, now_ms end
  served = whole(gone_ms)
  if (has_begun or now_ms - since >= MOST_BETWEEN_LOOKS_MS) and may_write() then
    served = whole(gone_ms + math.max(0, math.min(now_ms - seen_ms, MOST_BETWEEN_LOOKS_MS)))
    redis.call('HSET', KEYS[1], 'served', whole(since) .. ' ' .. whole(served) .. ' ' .. whole(now_ms))
  end
end
return answer(0)
