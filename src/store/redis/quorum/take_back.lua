-- Undoes an attempt that will be heard of no more, and voids it whatever was found.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2] the lock              ARGV[5] token hash   ARGV[6] attempt
-- KEYS[3] the token's mark      ARGV[7] life of a mark, ms
-- KEYS[4] who waits for it
--
-- Returns { 1 } if the lock was deleted, or is kept by nobody until the end of its `min_hold`, else { 0 }.

local lock = held(KEYS[2])
local mark = redis.call('GET', KEYS[3])
local deletes = lock and token_of(lock) == ARGV[5] and attempt_of(lock) == ARGV[6]
-- A lock that was told of is released, and not undone.
local is_kept = deletes and is_claim(ARGV[6]) and keep_released(KEYS[2], lock)
if deletes and not is_kept then redis.call('DEL', KEYS[2]) end
void(KEYS[3], mark, ARGV[6], ARGV[7])
if deletes then tell(KEYS[4], KEYS[2]) end
return { deletes and 1 or 0 }
