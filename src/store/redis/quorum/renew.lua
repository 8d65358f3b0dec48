-- Sets the lease to the longer of what is left and the ttl, if the token holds the lock, and pins it.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2] the lock              ARGV[5] token hash   ARGV[6] ttl, ms
--
-- Returns { 0, lock, ms left, ms that were left before } · { 1 } nobody holds it · { 2 } held by another

local lock, left_ms = held(KEYS[2])
if not lock then return { 1 } end
if token_of(lock) ~= ARGV[5] then return { 2 } end
if is_too_long(ARGV[6]) then return { -5, whole(now_us) } end
local ttl_ms = math.max(left_ms, tonumber(ARGV[6]))
return { 0, pin(KEYS[2], lock, ttl_ms), ttl_ms, left_ms }
