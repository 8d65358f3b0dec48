-- Sets the lease to the longer of what is left and the ttl, if the token holds the lock, and pins the grant.
--
-- KEYS[1] the lock    ARGV[1] token hash, 64 hex digits
--                     ARGV[2] ttl, ms
--
-- Returns { outcome, lock, ms left }: 0 renewed · 1 nobody holds it, 2 held by another (these two alone)

local lock, left_ms = held(KEYS[1])
if not lock then return { 1 } end
if token_of(lock) ~= ARGV[1] then return { 2 } end
local ttl_ms = math.max(left_ms, tonumber(ARGV[2]))
return { 0, pin(KEYS[1], lock, ttl_ms), ttl_ms }
