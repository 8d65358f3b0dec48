-- Says who holds a lock. Telling a token that it does is a promise like a renewal, so it pins the grant.
--
-- KEYS[1] the lock    ARGV[1] token hash, 64 hex digits, may be absent
--
-- Returns { outcome, lock, ms left }: 0 free (alone) · 1 held · 2 held, by the token shown

local lock, left_ms = held(KEYS[1])
if not lock then return { 0 } end
if ARGV[1] ~= token_of(lock) then return { 1, lock, left_ms } end
-- Pinning sets the TTL anew, and may round it up: once in the life of a grant, not with every look.
if attempt_of(lock) ~= PINNED then lock = pin(KEYS[1], lock, left_ms) end
return { 2, lock, left_ms }
