-- Frees a lock, if the grant of this number holds it, and offers it to the first in the wait queue.
--
-- KEYS[1..9] as in wait_queue.lua   ARGV[3..4] as in wait_queue.lua
--                                   ARGV[5] number of the grant
--
-- Returns { 0, lock, ms that were left } · { 1 } it has no holder · { 2 } held by another grant

-- Of a lock that several hold, the grant of this number; where a lost fence gave it twice, the first by token. It looks at all of
-- them, which is right for an operator and for no other.
local function numbered(pool, digits)
  local fields, found = redis.call('HGETALL', KEYS[7]), nil
  for i = 1, #fields, 2 do
    local is_it = string.match(fields[i + 1], '^%d+ %d+ %S+ (%d+)') == digits and fields[i] ~= ALL
    if is_it and (not found or fields[i] < found) then found = fields[i] end
  end
  return found and pool.seen.grant_of(found)
end

local lock, left_ms, offer = held(KEYS[1])
local pool
pool, offer = pool_in(offer)
local broken = pool and numbered(pool, ARGV[5])
if not lock and not (pool and pool.sharing() > 0) then return { 1 } end
-- Never by less than the number: a copy of this that comes late must not end the next grant.
if not broken and (pool or string.match(lock, '^%S+ %S+ (%d+)') ~= ARGV[5]) then return { 2 } end
if broken then
  lock, left_ms = told(broken), broken.left_ms
  pool.remove(broken)
  pool.purge()
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  open_queue().hand_off(pool)
elseif pool then
  pool.close_if_free()
else
  redis.call('DEL', KEYS[1])
end
return { 0, lock, left_ms }
