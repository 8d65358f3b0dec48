-- Undoes an attempt that has ended, and always voids it.
--
-- KEYS[1] as in member.lua        ARGV[1..4] as in member.lua
-- KEYS[2] the lock                ARGV[5] token hash   ARGV[6] attempt
-- KEYS[3] the token's tombstone   ARGV[7] life of a tombstone, ms
-- KEYS[4] who waits for it        ARGV[8] as ARGV[7] in redis/scripts/roll_back.lua
--                                 ARGV[9] the number that the client was told of; 0 if it was told of none
--
-- Returns the same as redis/scripts/roll_back.lua, or { 3, lock, ms left } where the attempt has claimed the lock, and leaves it so.

local lock, left_ms = held(KEYS[2])
local tombstone = redis.call('GET', KEYS[3])
local is_own = lock and token_of(lock) == ARGV[5]
local is_granted = is_own and attempt_of(lock) == ARGV[6]
local has_claimed = is_own and is_of_connection(ARGV[6]) and attempt_of(lock) == once_told(ARGV[6])
-- A connection may have claimed a larger number here that is still being voted on. It is by a claim that it holds what others took.
if is_granted and ARGV[9] ~= '0' and string.find(ARGV[6], '^[cdef]') then is_granted = number_of(lock) <= tonumber(ARGV[9]) end
local told_ms = tonumber(ARGV[8] or nil)
local outcome, kept_ms = is_granted and 1 or 0, nil
-- A lock that was told of is released, and not undone.
if is_granted and told_ms then outcome, kept_ms = give_up(KEYS[2], lock, left_ms, told_ms) end
if is_granted and not kept_ms then redis.call('DEL', KEYS[2]) end
void(KEYS[3], tombstone, ARGV[6], ARGV[7])
if is_final(tombstone) then redis.call('PEXPIRE', KEYS[3], ARGV[7]) end
if has_claimed and not is_granted then return { 3, lock, left_ms } end
if outcome == 1 then tell(KEYS[4], KEYS[2]) end
return { outcome, kept_ms or 0 }
