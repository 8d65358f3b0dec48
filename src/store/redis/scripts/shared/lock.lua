-- What all scripts that read a lock share; it is put in front of each of them.
--
-- A lock is a string with a TTL: `<token hash, 64 hex> <attempt, 32 hex> <fencing token> <owner, may be empty>`. What stands
-- right behind the number is in terms.lua. A pinned lock has dashes for its attempt, so that no attempt can ever match it.
-- Between two holders a lock may be offered to a ticket of its wait queue: `?<token hash> <attempt> <gateway> <start, ms>`.
-- An offer has no holder.
--
-- A tombstone is a string that lives on after a token was used:
--   `<n>`                    the token is freed; a release answered n, and repetitions answer it again
--   `! <attempt> <attempt>…` these attempts are voided; the token itself stays usable

local PINNED = string.rep('-', ATTEMPT_DIGITS)

local function token_of(lock) return string.sub(lock, 1, TOKEN_HASH_DIGITS) end

local function attempt_of(lock) return string.sub(lock, ATTEMPT_AT, NUMBER_AT - 2) end

-- Whether a connection holds the lock by this attempt: its first bit says so.
local function is_of_connection(attempt) return string.find(attempt, '^[89abcdef]') ~= nil end

local function with_attempt(lock, attempt) return token_of(lock) .. ' ' .. attempt .. string.sub(lock, NUMBER_AT - 1) end

local function is_final(tombstone) return tombstone and string.sub(tombstone, 1, 1) ~= '!' end

-- The lock of a key and what is left of its lease, in ms. If it is not held, returns nothing, and a third value if it is
-- offered. In its last millisecond a server says that nothing is left, though the key is still there. Every script treats
-- such a lock as held. Otherwise one script could renew a lock that another called free. It is held, too, where no script of this
-- version can read it. Less than nothing is left where another program took the TTL from the key.
local function held(key)
  local lock = redis.call('GET', key)
  if not lock then return nil end
  if string.sub(lock, 1, 1) == '?' then
    local token, attempt, gateway, start_ms = string.match(lock, '^%?(%S+) (%S+) (%S+) (%d+)$')
    if token or string.sub(lock, 2, 2) == '*' then
      return nil, nil, { token = token, attempt = attempt, gateway = gateway, start_ms = tonumber(start_ms) }
    end
  end
  local left_ms = redis.call('PTTL', key)
  return lock, left_ms == 0 and 1 or left_ms
end

-- Gives a lock to an attempt, and sets its lease. PEXPIRE comes first, because a server that is out of memory allows SET
-- only to a script that has written already. A holder must be able to renew then too.
local function hold_by(key, lock, attempt, left_ms, ttl_ms)
  local is_its_own = attempt_of(lock) == attempt
  -- To set anew what is left may round it up, time and again.
  if is_its_own and ttl_ms <= left_ms then return lock end
  -- What is without a TTL would end at once. The gateway cannot read it, and says so.
  if ttl_ms <= 0 then return lock end
  redis.call('PEXPIRE', key, ttl_ms)
  if is_its_own then return lock end
  local changed = with_attempt(lock, attempt)
  redis.call('SET', key, changed, 'PX', ttl_ms)
  return changed
end

-- By what a lock is held once a further request of its token was told of it: it is pinned, so that nothing takes it back.
-- A connection claims it, by another attempt than its own: undoing that one undoes nothing that was told before.
local function once_told(attempt)
  if not is_of_connection(attempt) then return PINNED end
  return (string.gsub(attempt, '^.', { ['8'] = 'c', ['9'] = 'd', ['a'] = 'e', ['b'] = 'f' }))
end

-- A server that is out of memory allows SET only to a script that has written already, and PEXPIRE always. DEL would do
-- for that too, but while a slot is on its way to another server nothing that is gone can be made again.
local function set_tombstone(key, tombstone, life_ms)
  redis.call('PEXPIRE', key, life_ms)
  redis.call('SET', key, tombstone, 'PX', life_ms)
end

-- Voids attempts, separated by spaces, so that copies that arrive later take nothing. `tombstone` is what the token's tombstone
-- says now; returns what it says then.
local function void(key, tombstone, attempts, life_ms)
  if is_final(tombstone) then return tombstone end
  tombstone = tombstone or '!'
  for attempt in string.gmatch(attempts, '%S+') do
    if not string.find(tombstone, attempt, 1, true) then tombstone = tombstone .. ' ' .. attempt end
  end
  -- A token retried without end must not grow a tombstone without end: its oldest attempts go first.
  local most = (ATTEMPT_DIGITS + 1) * MOST_VOIDED
  if #tombstone > 1 + most then tombstone = '!' .. string.sub(tombstone, -most) end
  set_tombstone(key, tombstone, life_ms)
  return tombstone
end
