-- What all scripts that read a lock share; it is put in front of each of them.
--
-- A lock is a string with a TTL: `<token hash, 64 hex> <attempt, 32 hex> <fencing number> <owner, may be empty>`.
-- A pinned lock has dashes for its attempt, so that no attempt can ever match it.
--
-- A mark is a string that lives on after a token was used:
--   `=<n>`                   the token is freed; a release answered n, and repetitions answer it again
--   `! <attempt> <attempt>…` these attempts are voided; the token itself stays usable

local PINNED = string.rep('-', 32)

local function token_of(lock) return string.sub(lock, 1, 64) end

local function attempt_of(lock) return string.sub(lock, 66, 97) end

local function is_final(mark) return mark and string.sub(mark, 1, 1) == '=' end

-- The lock of a key and what is left of its lease, in ms; nothing where nobody holds it. In its last millisecond a
-- lock counts as free, for every script alike: what one of them calls free, no other may renew.
local function held(key)
  local lock = redis.call('GET', key)
  local left_ms = lock and redis.call('PTTL', key)
  if not lock or left_ms == 0 then return nil end
  return lock, left_ms
end

-- Pins a grant and sets its lease. PEXPIRE comes first because a server that is out of memory allows SET only to
-- a script that has written already, and whoever holds a lock must be able to renew it then too.
local function pin(key, lock, ttl_ms)
  redis.call('PEXPIRE', key, ttl_ms)
  if attempt_of(lock) == PINNED then return lock end
  local pinned = token_of(lock) .. ' ' .. PINNED .. string.sub(lock, 98)
  redis.call('SET', key, pinned, 'PX', ttl_ms)
  return pinned
end
