-- Ends one grant, and makes sure that no late copy gives it a lock again.
--
-- KEYS[1] as in member.lua                                 ARGV[1..4] as in member.lua
-- KEYS[2] the lock                                         ARGV[5] number of the grant
-- KEYS[3] the tombstone of the token that was granted it   ARGV[6] life of a tombstone, ms
-- KEYS[4] who waits for it
--
-- Returns { 0 } if the lock was held by it here, else { 1 }

local number = tonumber(ARGV[5])
local lock = held(KEYS[2])
local tombstone = redis.call('GET', KEYS[3])
local is_held = lock and number_of(lock) == number
if is_held then redis.call('DEL', KEYS[2]) end
-- A renewal may be about to mend the lock on a server that lacks it.
void(KEYS[3], tombstone, broken(number), ARGV[6])
if number > high and not is_too_far(number) then accept(number) end
if is_held then tell(KEYS[4], KEYS[2]) end
return { is_held and 0 or 1 }
