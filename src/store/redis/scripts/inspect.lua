-- Says who holds a lock, and how many wait for it. Telling a token that it does is a promise like a renewal, so it
-- pins the grant, unless a connection holds it.
--
-- KEYS[1] the lock                     ARGV[1] token hash, or empty
-- KEYS[2] line, KEYS[3] away, as in wait_queue.lua
-- KEYS[4] held, KEYS[5] ends, KEYS[6] wide, as in slots.lua
--
-- Returns { outcome, lock or '', ms left, waiters }: 0 free · 1 held · 2 held, by the token shown
--   and, where several hold it, how many, the smallest number that one has said, and of some of them { lock, ms left, … }

local MOST_NAMED = 100

local lock, left_ms, offer = held(KEYS[1])
local waiters = count_waiters(KEYS[2], KEYS[3], 1000)
if are_several(offer) and redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[6]) == 3 then
  local slots = read_slots(KEYS[4], KEYS[5], KEYS[6])
  local count, least = slots.sharing()
  if count == 0 then return { 0, '', 0, waiters } end
  local own = ARGV[1] ~= '' and slots.grant_of(ARGV[1])
  local named = {}
  for _, grant in ipairs(slots.first(MOST_NAMED)) do
    if not grant.slot then return unreadable() end
    named[#named + 1] = told(grant)
    named[#named + 1] = grant.left_ms
  end
  local by = own and attempt_of(own.lock)
  if own and by ~= PINNED and not is_of_connection(by) then
    own.lock = with_attempt(own.lock, PINNED)
    redis.call('HDEL', KEYS[4], '')
    redis.call('HSET', KEYS[4], own.field, written(own))
  end
  return { own and 2 or 1, own and told(own) or named[1], own and own.left_ms or named[2], waiters, count, least, named }
end
if not lock then return { 0, '', 0, waiters } end
if ARGV[1] ~= token_of(lock) then return { 1, lock, left_ms, waiters } end
-- Pinning sets the TTL anew, and may round it up: once in the life of a grant, not with every look.
local by = attempt_of(lock)
if by ~= PINNED and not is_of_connection(by) then lock = hold_by(KEYS[1], lock, PINNED, left_ms, left_ms) end
return { 2, lock, left_ms, waiters }
