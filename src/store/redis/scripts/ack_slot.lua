-- The same as ack.lua for a slot of a lock that several hold.
--
-- KEYS[1] the lock    ARGV[1] token hash
-- KEYS[2] held        ARGV[2] fencing token
--
-- Returns 1 · 0 the grant is not there, or the lock has no TTL

local _, _, offer = held(KEYS[1])
local grant = are_several(offer) and redis.call('HGET', KEYS[2], ARGV[1])
if not grant or string.match(grant, '^%d+ %d+ %S+ (%d+)') ~= ARGV[2] then return 0 end
local left_ms = redis.call('PTTL', KEYS[1])
return left_ms < 0 and 0 or redis.call('PEXPIRE', KEYS[1], math.max(left_ms, 1))
