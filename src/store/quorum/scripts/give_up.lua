-- Gives up a number that most servers did not accept: what was accepted is undone, and a copy that comes late refused.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2] the lock              ARGV[5] token hash   ARGV[6] attempt
-- KEYS[3] who waits for it      ARGV[7] number
--
-- Returns { 0, the number by which the token still holds the lock, or 0 } if nothing of it is left
--   { 1, as with 0 } where the token was told meanwhile that it holds the lock, or the attempt was accepted by a larger number
--   { 2 } where the number is too far ahead to be burnt: a copy that comes later may still be accepted

local number = tonumber(ARGV[7])
local lock = held(KEYS[2])
local is_left, own = false, 0
if lock and token_of(lock) == ARGV[5] then
  local by = attempt_of(lock)
  own = number_of(lock)
  if by == ARGV[6] and own <= number then
    redis.call('DEL', KEYS[2])
    tell(KEYS[3], KEYS[2])
    own = 0
  else
    is_left = by == ARGV[6] or own <= number and (by == PINNED or is_of_connection(by))
  end
end
if number > high then
  -- A server that is out of memory allows HSET only to a script that has written already.
  redis.call('PEXPIRE', KEYS[3], record[5])
  if is_too_far(number) then return { 2 } end
  accept(number)
end
return { is_left and 1 or 0, whole(own) }
