-- Accepts numbers for locks that are free, or says that another token holds them. These are most locks, most of the time. The rest
-- goes to acquire.lua, which has far more to prepare. Each lock is taken as if it were asked for alone.
--
-- KEYS[1] the server's record     ARGV[1] run by which the gateway knows the server
-- and for each lock two           ARGV[2] epoch of the list of servers
--   the lock                      and for each lock five
--   the token's tombstone           field of its bucket in the record
--                                   until when to take it, µs by the server's clock, may be empty
--                                   ttl, ms
--                                   number
--                                   the value of the lock
--
-- Returns for each lock 1 accepted · as in acquire.lua, { 2, lock, ms left, largest number } held by another, and
--   { 7, largest number } a larger one was accepted · -1 where nothing was done; and for one lock alone no array of these

local RECORD = KEYS[1]
local locks = (#KEYS - 1) / 2
local reply, fields = {}, {}
for i = 1, locks do reply[i], fields[i] = -1, ARGV[5 * i - 2] end

-- As in member.lua.
local record = redis.call('HMGET', RECORD, 'run', 'epoch', 'since', 'floor', 'longest', unpack(fields))
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] or record[3] ~= '0' then return locks == 1 and -1 or reply end
local floor, longest_ms = tonumber(record[4]), tonumber(record[5])

-- The script reads everything before it writes, and no value that it reads ends it: the other locks are for other clients.
local are_free = redis.call('EXISTS', unpack(KEYS, 2)) == 0
local accepted, highs, is_taken, told = {}, {}, {}, {}
for i = 1, locks do
  local key, tombstone, at = KEYS[2 * i], KEYS[2 * i + 1], 5 * i - 2
  local field, deadline, number = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 3])
  local known = tonumber(record[5 + i] or 0)
  local is_in_time = deadline == '' or now_us <= tonumber(deadline)
  if known and is_in_time and tonumber(ARGV[at + 2]) <= longest_ms then
    -- Those who are refused are told of it as if they came first: of the others, the server may refuse to write any.
    known = math.max(known, floor)
    local high = highs[field] or known
    local is_free = are_free
    if not are_free and redis.call('EXISTS', tombstone) == 0 then
      local lock = redis.pcall('GET', key)
      is_free = not lock
      if type(lock) == 'string' and string.sub(lock, 1, 1) ~= '?'
        and string.sub(lock, 1, TOKEN_HASH_DIGITS) ~= string.sub(ARGV[at + 4], 1, TOKEN_HASH_DIGITS) then
        local left_ms = redis.call('PTTL', key)
        if left_ms > 0 then reply[i] = { 2, lock, left_ms, string.format('%.0f', known) } end
      end
    end
    if is_free and is_passed(number, known) then
      reply[i] = { 7, string.format('%.0f', known) }
    -- One that is asked for twice is taken once.
    elseif is_free and not is_taken[key] and not is_passed(number, high) and not is_too_far_ahead(number, high, now_us) then
      accepted[#accepted + 1], highs[field], is_taken[key] = i, number, true
      told[#told + 1] = field
      told[#told + 1] = ARGV[at + 3]
    end
  end
end
if #accepted == 0 then return locks == 1 and reply[1] or reply end

-- What the server refuses is left to acquire.lua, which has it tell each of them why.
local is_told = redis.pcall('HSET', RECORD, unpack(told))
if type(is_told) == 'number' then
  for _, i in ipairs(accepted) do
    redis.call('SET', KEYS[2 * i], ARGV[5 * i + 2], 'PX', ARGV[5 * i])
    reply[i] = 1
  end
end
return locks == 1 and reply[1] or reply
