-- Says who holds a lock, and how many wait for it. Telling a token that it does is a promise like a renewal, so it
-- pins the grant, unless a connection holds it.
--
-- KEYS[1] the lock                     ARGV[1] token hash, or empty
-- KEYS[2] line, KEYS[3] away, as in wait_queue.lua
--
-- Returns { outcome, lock or '', ms left, waiters }: 0 free · 1 held · 2 held, by the token shown

local lock, left_ms = held(KEYS[1])
local waiters = count_waiters(KEYS[2], KEYS[3], 1000)
if not lock then return { 0, '', 0, waiters } end
if ARGV[1] ~= token_of(lock) then return { 1, lock, left_ms, waiters } end
-- Pinning sets the TTL anew, and may round it up: once in the life of a grant, not with every look.
local by = attempt_of(lock)
if by ~= PINNED and not is_of_connection(by) then lock = hold_by(KEYS[1], lock, PINNED, left_ms, left_ms) end
return { 2, lock, left_ms, waiters }
