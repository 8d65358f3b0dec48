-- Frees a lock, if the grant of this number holds it, and offers it to the first in the wait queue.
--
-- KEYS[1..9] as in wait_queue.lua   ARGV[3..4] as in wait_queue.lua
--                                   ARGV[5] number of the grant
--
-- Returns { 0, lock, ms that were left } · { 1 } it has no holder · { 2 } held by another grant

-- Of a lock that several hold, the grant of this number; where a lost fence gave it twice, the first by token; and whether it may
-- be one that cannot be read. It looks at all of them, which is right for an operator and for no other.
local function numbered(pool, digits)
  local found, may_be
  for _, grant in ipairs(pool.seen.first(-1)) do
    may_be = may_be or not grant.slot
    local is_it = grant.slot and string.match(grant.lock, '^%S+ %S+ (%d+)') == digits
    if is_it and (not found or grant.field < found.field) then found = grant end
  end
  return found, not found and may_be
end

local lock, left_ms, offer = held(KEYS[1])
local pool
pool, offer = pool_in(offer)
local broken, may_be
if pool then broken, may_be = numbered(pool, ARGV[5]) end
if may_be or lock and not is_readable(lock) then return unreadable() end
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
