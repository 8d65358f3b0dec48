-- Sets the lease to the longer of what is left and the ttl, if the token holds the lock, and pins the grant, unless a
-- connection holds it.
--
-- KEYS[1] the lock    ARGV[1] token hash, 64 hex digits
--                     ARGV[2] ttl, ms
--                     ARGV[3] attempt by which a connection holds it, else empty
--
-- Returns { outcome, lock, ms left }: 0 renewed · 3 it lasts as long as `max_hold` allows already
--   1 it has no holder, 2 held by another, 4 held by another attempt, 5 the token has released it, and it is kept (these alone)

local lock, left_ms = held(KEYS[1])
if not lock then return { 1 } end
if token_of(lock) ~= ARGV[1] then return { was_held_by(lock, ARGV[1]) and 5 or 2 } end
return { renew(KEYS[1], lock, left_ms, tonumber(ARGV[2]), ARGV[3]) }
