-- Says who holds a lock, and how many wait for it. Telling a token that it does is a promise like a renewal, so it
-- pins the grant, unless a connection holds it.
--
-- KEYS[1] the lock                     ARGV[1] token hash, or empty
-- KEYS[2] line, KEYS[3] away, as in line.lua
--
-- Returns { outcome, lock or '', ms left, waiters }: 0 free · 1 held · 2 held, by the token shown

local lock, left_ms = held(KEYS[1])
local waiters = redis.call('ZCARD', KEYS[2])
if waiters > 0 then
  -- Places that were left for too long are not counted. Removing them is for those who may write.
  local time = redis.call('TIME')
  local lost = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', time[1] * 1000, 'LIMIT', 0, 1000)
  local places = #lost > 0 and redis.call('ZMSCORE', KEYS[2], unpack(lost)) or {}
  for i = 1, #lost do
    if places[i] then waiters = waiters - 1 end
  end
end
if not lock then return { 0, '', 0, waiters } end
if ARGV[1] ~= token_of(lock) then return { 1, lock, left_ms, waiters } end
-- Pinning sets the TTL anew, and may round it up: once in the life of a grant, not with every look.
local by = attempt_of(lock)
if by ~= PINNED and not is_of_connection(by) then lock = hold_by(KEYS[1], lock, PINNED, left_ms) end
return { 2, lock, left_ms, waiters }
