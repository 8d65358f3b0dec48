-- Sets the lease to the longer of what is left and the ttl, if the token holds the lock. The grant is pinned, also where a connection
-- holds it: its token takes it over. A connection that renews by its attempt pins nothing.
--
-- KEYS the locks, each asked for as if it were asked for alone    ARGV for each of them: token hash, 64 hex digits
--                                                                 ttl, ms
--                                                                 attempt by which a connection holds it, else empty
--
-- Returns { outcome, lock, ms left }, or of several locks an array of these: 0 renewed · 3 it lasts as long as `max_hold` allows
--   already · 1 it has no holder, 2 held by another, 4 held by another attempt, 5 the token has released it, and it is kept, -1 it
--   is to be asked for alone (these alone)

return each(#KEYS, function(i)
  if replies[i] then return replies[i] end
  local token, ttl, by = unpack(ARGV, 3 * i - 2, 3 * i)
  local lock, left_ms = held(KEYS[i])
  if not lock then return { 1 } end
  if token_of(lock) ~= token then return { was_held_by(lock, token) and 5 or 2 } end
  return { renew(KEYS[i], lock, left_ms, tonumber(ttl), by) }
end)
