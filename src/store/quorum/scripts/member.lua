-- What all scripts of a quorum begin with; it is put behind lock.lua and ahead.lua. A server counts only while it is known to remember
-- what it accepted: else it does nothing, and says why.
--
-- KEYS[1] the server's record              ARGV[1] run by which the gateway knows the server
--                                          ARGV[2] epoch of the list of servers
--                                          ARGV[3] until when to run, µs by the server's clock, may be empty
--                                          ARGV[4] field of the bucket in the record
--
-- Returns, instead of what the script itself does, { code, µs by the server's clock }:
--   -1 it has no record of this run   -2 the list is another one   -3 in quarantine   -4 too late   -5 the lease is too long
--
-- The record is one hash, so that nothing of it is lost alone:
--   run                   names the process, and what it last followed: whatever else a server loads is another's, or old. It is
--                         `evicted` where that process has evicted keys
--   evictions             `<run> <count>`: how many that process had evicted when gateways looked last. A version that does not know the
--                         field leaves it as it is
--   epoch, members        what the gateway must know
--   since                 ms at which the quarantine began, 0 for none
--   served                `<since> <ms> <ms>`: how much of that quarantine gateways have seen go by, and when they looked last
--   quorum                the id of the quorum, once gateways have given it one. A version that does not know the field leaves it as it is
--   longest               ms that a lease can last, the attempt that takes it included
--   floor, b<bucket>      the largest number that was accepted, in any bucket at least and in this one
--   born                  there if the server was ever part of the quorum
--   settled               1 once most servers of the list before have learned this one
--   before                its epoch, and that of the list from which it has come to it; 0 if it was in quarantine between them. A
--                         version that does not know the field leaves it as it is

local RECORD, BUCKET = KEYS[1], ARGV[4]

local function whole(number) return string.format('%.0f', number) end

local record = redis.call('HMGET', RECORD, 'run', 'epoch', 'since', 'floor', 'longest', BUCKET)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
if record[1] ~= ARGV[1] then return { -1, whole(now_us) } end
if record[2] ~= ARGV[2] then return { -2, whole(now_us) } end
if record[3] ~= '0' then return { -3, whole(now_us) } end
if ARGV[3] ~= '' and now_us > tonumber(ARGV[3]) then return { -4, whole(now_us) } end

-- The largest number that was accepted here.
local high = math.max(tonumber(record[6] or 0), tonumber(record[4]))

local function is_too_far(number) return is_too_far_ahead(number, high, now_us) end

local function is_too_long(ttl_ms) return tonumber(ttl_ms) > tonumber(record[5]) end

local function accept(number)
  high = number
  redis.call('HSET', RECORD, BUCKET, whole(number))
end

local function number_of(lock) return tonumber(string.match(lock, '^%S+ %S+ (%d+)')) end

-- What stands in the tombstone of a token whose grant of this number was broken, in the place of an attempt.
local function broken(number) return string.rep('#', ATTEMPT_DIGITS - #whole(number)) .. whole(number) end

-- Tells the gateways that have waiters that a lock may be free.
local function tell(watch, lock)
  local channels = redis.call('ZRANGE', watch, 0, -1)
  if #channels == 0 then return end
  redis.call('DEL', watch)
  for _, channel in ipairs(channels) do
    -- Servers before 7.0 have no sharded channels, and permissions may forbid both: gateways look now and then.
    local told = redis.pcall('SPUBLISH', channel, 'due 0 ' .. lock)
    if type(told) == 'table' and told.err then redis.pcall('PUBLISH', channel, 'due 0 ' .. lock) end
  end
end
