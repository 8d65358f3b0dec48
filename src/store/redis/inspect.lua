-- Says who holds a lock. Telling a token that it does is a promise like a renewal, so it pins the grant.
--
-- KEYS[1] the lock    ARGV[1] token hash, 64 hex digits, may be absent
--
-- Returns { outcome, lock, ms left }: 0 free (alone) · 1 held · 2 held, by the token shown

local lock = redis.call('GET', KEYS[1])
if not lock then return { 0 } end
local left_ms = redis.call('PTTL', KEYS[1])
if ARGV[1] ~= token_of(lock) then return { 1, lock, left_ms } end
-- PEXPIRE with 0 would delete a lock that has this one millisecond left.
return { 2, pin(KEYS[1], lock, math.max(left_ms, 1)), left_ms }
