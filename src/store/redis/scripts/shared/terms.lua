-- For how long a lock may, and must, be taken; it is put behind lock.lua where locks are granted, renewed and released.
--
-- A lock with terms has them behind its number, `<number>:<ms>:<ms>`: the times by the server's clock at which `max_hold`
-- and `min_hold` end, 0 for none. A lock that is kept after its release has zeros for its token hash, and no terms. In the
-- place of an attempt it has the first half of the hash of the token that released it.

local NOBODY_HASH = string.rep('0', TOKEN_HASH_DIGITS)
-- The clock, and what is left of a lease, are each read in whole milliseconds.
local ROUNDING_MS = 2

local function now_in_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What stands behind the number of a new lock. Both lengths in ms, empty or nothing for none.
local function terms_of(max_hold_ms, min_hold_ms)
  local max_ms, min_ms = tonumber(max_hold_ms or nil), tonumber(min_hold_ms or nil)
  if not max_ms and not min_ms then return '' end
  local now_ms = now_in_ms()
  return string.format(':%.0f:%.0f', max_ms and now_ms + max_ms or 0, min_ms and now_ms + min_ms or 0)
end

-- How long the lock may still be taken, and must, in ms; nothing where there is no such term.
local function terms_left(lock)
  local max_ms, min_ms = string.match(lock, '^%S+ %S+ %d+:(%d+):(%d+) ')
  if not max_ms then return nil, nil end
  local now_ms = now_in_ms()
  return max_ms ~= '0' and tonumber(max_ms) - now_ms or nil, min_ms ~= '0' and tonumber(min_ms) - now_ms or nil
end

-- The longer of what is left of a lease and the ttl, but not past the end of `max_hold`; and whether the lease lasts until
-- then already.
local function renewed_ms(lock, left_ms, ttl_ms)
  local most_ms = terms_left(lock)
  if not most_ms or ttl_ms <= most_ms then return math.max(left_ms, ttl_ms), false end
  -- Without a TTL, a lock ends here whose `max_hold` is over.
  return math.max(left_ms, most_ms, 1), left_ms + ROUNDING_MS >= most_ms
end

-- Renews a lock that its token holds: by the attempt of a connection, or, where that is empty, by the token, which pins it.
-- Returns an outcome, the lock, and what is left: 0 renewed · 3 it lasts as long as `max_hold` allows · 4 it is held by
-- another attempt.
local function renew(key, lock, left_ms, ttl_ms, attempt)
  if attempt ~= '' and attempt_of(lock) ~= attempt then return 4 end
  local length_ms, is_longest = renewed_ms(lock, left_ms, ttl_ms)
  local renewed = hold_by(key, lock, attempt ~= '' and attempt or PINNED, left_ms, length_ms)
  return is_longest and 3 or 0, renewed, length_ms
end

-- Whether the lock is kept after its release, and this is the token that held it.
local function was_held_by(lock, token)
  return token_of(lock) == NOBODY_HASH and attempt_of(lock) == string.sub(token, 1, ATTEMPT_DIGITS)
end

-- If a lock is released before the end of its `min_hold`, it stays taken until then, without a holder. Returns how long that
-- is, in ms; nothing if the lock is to be freed.
local function keep_released(key, lock)
  local _, least_ms = terms_left(lock)
  if not least_ms or least_ms <= 0 then return nil end
  local former = string.sub(lock, 1, ATTEMPT_DIGITS)
  local digits, owner = string.match(lock, '^%S+ %S+ (%d+)%S*(.*)$')
  redis.call('PEXPIRE', key, least_ms)
  redis.call('SET', key, NOBODY_HASH .. ' ' .. former .. ' ' .. digits .. owner, 'PX', least_ms)
  return least_ms
end

-- Gives up a lock for a connection that held it, and has ended. If its token was told before of leases that run for
-- `told_ms` more, the lock stays with the token for so long, and until the end of its `min_hold`. Else it is released.
-- Returns 1 and how long it is kept without a holder; nothing if it is to be freed; or 2 and how long it stays with the
-- token.
local function give_up(key, lock, left_ms, told_ms)
  if told_ms == 0 then return 1, keep_released(key, lock) end
  local _, least_ms = terms_left(lock)
  if left_ms < 0 then left_ms = told_ms end
  local rest_ms = math.max(math.min(left_ms, told_ms), least_ms or 0)
  hold_by(key, lock, PINNED, left_ms, rest_ms)
  return 2, rest_ms
end
