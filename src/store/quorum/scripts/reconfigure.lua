-- Changes what a server is in the quorum, if it is still what the gateway took it for.
--
-- KEYS[1] the server's record   ARGV[1] run                  ARGV[5] ms that a lease can last, the attempt included
--                               ARGV[2] kind of the change   ARGV[6] the largest number that others accepted; on joining,
--                                                            1 if the server was ever part of a quorum; the id to give,
--                                                            also to one that is founded
--                               ARGV[3] epoch of the list    ARGV[7] the epoch of the list before
--                               ARGV[4] list of servers      ARGV[8] until when to do it, ms by the server's clock
--                                                            ARGV[9] when the quarantine began, 0 for none
--
--   join     a server that forgot, or is new in the list, goes into quarantine
--   found    the quarantine ends at once, since no server of the list has ever been part of a quorum
--   restore  the end of the quarantine: the server takes no number that may have been given before
--   store    a server that was in the list before learns the new one
--   settle   most of those have
--   name     it gets the id of the quorum, which never changes
--
-- Returns { 1 } if that was done, else { 0 }.

local function whole(number) return string.format('%.0f', number) end

local RECORD, RUN, KIND, EPOCH = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = whole(math.floor(now_us / 1000))
-- A gateway that stood still would act on what it saw long ago.
if tonumber(now_ms) > tonumber(ARGV[8]) then return { 0 } end
local fields = redis.call('HMGET', RECORD, 'run', 'epoch', 'since', 'floor', 'longest', 'born', 'served')
local run, epoch, since, floor, longest, born, served = unpack(fields, 1, 7)
floor = tonumber(floor or 0)
longest = math.max(tonumber(longest or 0), tonumber(ARGV[5]))

local function write(...)
  -- A server that is out of memory allows HSET only to a script that has written already, and HDEL always. There is no such
  -- field, so only HSET is in the server's file, and alone at the end of a quarantine: of a server that drops transactions when
  -- it loads the file, the record is there.
  redis.call('HDEL', RECORD, '')
  redis.call('HSET', RECORD, 'run', RUN, 'epoch', EPOCH, 'members', ARGV[4], 'longest', whole(longest), ...)
  return { 1 }
end

if KIND == 'join' then
  -- Another gateway may have seen to it, and what has begun must not begin anew.
  if run == RUN and epoch == EPOCH then return { 0 } end
  if epoch and tonumber(epoch) > tonumber(EPOCH) then return { 0 } end
  write('since', now_ms, 'floor', whole(floor), 'settled', '0')
  redis.call('HDEL', RECORD, 'before')
  -- It may have been part of a quorum before, and have forgotten that too.
  -- A machine that boots with the same time again may begin a quarantine in the same ms as one before.
  if ARGV[6] == '1' then redis.call('HSET', RECORD, 'born', now_ms, 'served', '0 0 0') end
  return { 1 }
end
if run ~= RUN then return { 0 } end
if KIND == 'store' then
  if epoch ~= ARGV[7] or since ~= '0' then return { 0 } end
  return write('settled', '0', 'before', ARGV[3] .. ' ' .. ARGV[7])
end
-- A quarantine is named by its beginning: what is said of one must not end a later one.
if epoch ~= EPOCH or since ~= ARGV[9] then return { 0 } end
if KIND == 'name' then
  if redis.call('HGET', RECORD, 'quorum') then return { 0 } end
  redis.call('HDEL', RECORD, '')
  redis.call('HSET', RECORD, 'quorum', ARGV[6])
  return { 1 }
end
if KIND == 'settle' then
  if since ~= '0' then return { 0 } end
  return write('settled', '1', 'floor', whole(math.max(floor, tonumber(ARGV[6]))))
end
if since == '0' then return { 0 } end
if KIND == 'found' then
  if born then return { 0 } end
  -- Born as it came: so a gateway that finds the servers without an id makes the same of them.
  return write('since', '0', 'born', since, 'settled', '1', 'quorum', ARGV[6])
end
if KIND == 'restore' then
  local of, gone_ms = string.match(served or '', '^(%d+) (%d+) ')
  if of ~= since or tonumber(gone_ms) < longest or now_ms - since < longest then return { 0 } end
  -- As above: another gateway may just have made an id of it.
  return write('since', '0', 'floor', whole(math.max(floor, tonumber(ARGV[6]))), 'born', since, 'settled', '1')
end
return redis.error_reply('ERR no such change')
