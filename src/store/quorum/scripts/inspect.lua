-- Says who holds a lock here, and pins it if it is the token that is shown, unless a connection holds it.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2] the lock              ARGV[5] token hash, or empty
--
-- Returns { outcome, lock, ms left }: { 0 } free · 1 held · 2 held, by the token shown

local lock, left_ms = held(KEYS[2])
if not lock then return { 0 } end
if token_of(lock) ~= ARGV[5] then return { 1, lock, left_ms } end
local by = attempt_of(lock)
if by ~= PINNED and not is_of_connection(by) then lock = hold_by(KEYS[2], lock, PINNED, left_ms, left_ms) end
return { 2, lock, left_ms }
