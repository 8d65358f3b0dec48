-- The same as ack.lua for a slot of a lock that several hold.
--
-- KEYS[1] the lock    ARGV[1] token hash
-- KEYS[2] held        ARGV[2] fencing token
--
-- Returns 1 · 0 the grant is not there

local _, _, offer = held(KEYS[1])
local grant = are_several(offer) and redis.call('HGET', KEYS[2], ARGV[1])
if not grant or string.match(grant, '^%d+ %d+ %S+ (%d+)') ~= ARGV[2] then return 0 end
redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]))
return 1
