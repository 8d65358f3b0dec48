-- Says that a gateway is alive, and asks which locks it must poll.
--
-- KEYS[1] gates   ARGV[1] gateway
-- KEYS[2] due     ARGV[2] life of both, ms
--                 ARGV[3] the heartbeat number that answered the gateway's last heartbeat, may be empty
--
-- Returns { heartbeat number, 1 if the gateway may have been forgotten since, else 0, lock, ms until due, lock, ms until due, … }
--
-- The gateway's last answered heartbeat must still be the last that is known, and must not be old. Only then three things
-- are certain: no script took the gateway for absent, no flush lost its waiters, and no lock was struck off that it should
-- have polled. Otherwise a late copy of a heartbeat would hide that.

local MOST_DUE = 1000
-- A lock that was due for so long has no waiters, and a gateway that was silent for so long is given up.
local OVERDUE_MS = 10000
local FORGOTTEN_MS = 60000
-- Less than OVERDUE_MS: a gateway that was silent for longer may have missed what was due.
local OLD_MS = 5000

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_new = redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[3] or now_ms - ARGV[3] > OLD_MS
-- Removing comes first for a server that is out of memory: it then allows the rest to a script that has written already.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms - OVERDUE_MS)
if is_new then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms - FORGOTTEN_MS) end
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now_ms + LOOK_AHEAD_MS, 'WITHSCORES', 'LIMIT', 0, MOST_DUE)
local reply = { redis.call('ZSCORE', KEYS[1], ARGV[1]), is_new and 1 or 0 }
for i = 1, #due, 2 do
  reply[#reply + 1] = due[i]
  reply[#reply + 1] = due[i + 1] - now_ms
end
return reply
