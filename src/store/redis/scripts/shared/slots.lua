-- Reading a lock that several hold; it is put behind lock.lua.
--
-- Such a lock is four keys, which live and end together; where one of them is missing, none holds it:
--   lock  `?*` and a character for each slot, `#` taken, `.` free. It begins as an offer does, so that the small scripts leave it
--         to those that know it
--   held  token hash -> `<slot> <slots> <attempt> <fencing token> <owner>`: from the attempt on as a lock's value. A slot that is
--         kept after its release belongs to no token: its field is `!<slot>`. At `*` stand the offers, a line for each:
--         `<token hash> <slots> <attempt> <gateway> <start, ms>`
--   ends  the same fields -> ms by the server's clock at which each is over
--   wide  the same fields -> how many slots each has said
-- The last two have a `*` too, so that neither is ever emptied and made anew: in a slot of a cluster that is on its way to another
-- server that cannot be done. All scripts pass over what has ended; those that hand off remove it.

local ALL, KEPT = '*', string.rep('0', TOKEN_HASH_DIGITS)

local function whole(number) return string.format('%.0f', number) end

-- No lease ends so late; the `*` of `ends` is over after it.
local LAST_END = LARGEST_NUMBER - 1

-- What is told of a lock, or a grant, that no script of this version can read. It is held all the same.
local NO_LOCK = '?'
local UNREADABLE = 'UNREADABLE the lock cannot be read: another version of Fencepost, or another program, wrote it'
local function unreadable() return redis.error_reply(UNREADABLE) end
-- As a text: Redis 6.2 cannot tell of a table that is thrown.
local function throw_unreadable() error(UNREADABLE, 0) end

-- Whether a lock that one holds alone can be read.
local function is_readable(lock) return string.match(lock, '^%x+ %S+ ()%d+%S* ') == NUMBER_AT end

-- Whether what `held` took for an offer is a lock that several hold.
local function are_several(offer) return offer and not offer.token end

local function live_for(keys, ms)
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, ms + AFTER_END_MS) end
end

-- What stands of a grant in its field.
local function written(grant)
  return whole(grant.slot) .. ' ' .. whole(grant.slots) .. ' ' .. string.sub(grant.lock, ATTEMPT_AT)
end

-- Writes a grant, which ends in so many ms, and more fields of `held` with it. `keys` are the four.
local function write_grant(keys, grant, lock, NOW_MS, left_ms, ...)
  grant.lock, grant.left_ms = lock, left_ms
  redis.call('HSET', keys[2], grant.field, written(grant), ...)
  redis.call('ZADD', keys[3], NOW_MS + 1 + left_ms, grant.field)
  if redis.call('PTTL', keys[1]) < left_ms + AFTER_END_MS / 2 then live_for(keys, left_ms) end
end

-- The same for a grant that is there. A holder must be able to renew where memory is out: see lock.lua.
local function rewrite_grant(keys, ...)
  redis.call('HDEL', keys[2], '')
  write_grant(keys, ...)
end

-- Those who hold the lock, as the keys have it.
local function read_slots(HELD, ENDS, WIDE)
  local time = redis.call('TIME')
  local NOW_US = time[1] * 1000000 + time[2]
  local NOW_MS = math.floor(NOW_US / 1000)

  -- The grant in a field. Its `lock` is what the value of a lock would be. The clock is read in whole ms, so what is left may be
  -- up to one less than it looks. A grant that cannot be read, or is missing, has an end and no slot.
  local function read(field, text, ends_at)
    local ends_ms = tonumber(ends_at or nil)
    if not ends_ms or ends_ms <= NOW_MS then return nil end
    local left_ms = math.max(ends_ms - NOW_MS - 1, 1)
    local slot, slots, rest = string.match(text or '', '^(%d+) (%d+) (.*)$')
    local lock = (string.sub(field, 1, 1) == '!' and KEPT or field) .. ' ' .. (rest or '')
    if not is_readable(lock) then return { field = field, left_ms = left_ms } end
    return { field = field, slot = tonumber(slot), slots = tonumber(slots), lock = lock, left_ms = left_ms }
  end

  local function grant_in(field, text)
    local grant = read(field, text, redis.call('ZSCORE', ENDS, field))
    if grant and not grant.slot then throw_unreadable() end
    return grant
  end

  local function grant_of(field) return grant_in(field, redis.call('HGET', HELD, field)) end

  -- So many, or with -1 all, first those that end first.
  local function first(most)
    local found = redis.call('ZRANGEBYSCORE', ENDS, NOW_MS + 1, LAST_END, 'WITHSCORES', 'LIMIT', 0, most)
    local fields, grants = {}, {}
    for i = 1, #found, 2 do fields[#fields + 1] = found[i] end
    if #fields == 0 then return grants end
    for i, text in ipairs(redis.call('HMGET', HELD, unpack(fields))) do
      grants[#grants + 1] = read(fields[i], text, found[2 * i])
    end
    return grants
  end

  -- How many hold it, and the smallest number that one of them has said.
  local function sharing()
    local over = redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW_MS)
    local is_over = {}
    for _, field in ipairs(over) do is_over[field] = true end
    local said = redis.call('ZRANGE', WIDE, 0, #over, 'WITHSCORES')
    local least
    for i = 1, #said, 2 do
      if not is_over[said[i]] then
        least = tonumber(said[i + 1])
        break
      end
    end
    return redis.call('ZCARD', ENDS) - 1 - #over, least
  end

  return { NOW_US = NOW_US, NOW_MS = NOW_MS, grant_in = grant_in, grant_of = grant_of, first = first, sharing = sharing }
end

-- A grant as it is told: its slot, and how many it has said, stand behind its number.
local function told(grant)
  if not grant.slot then return NO_LOCK end
  local _, last = string.find(grant.lock, '^%d+', NUMBER_AT)
  return string.sub(grant.lock, 1, last) .. '*' .. whole(grant.slot) .. '*' .. whole(grant.slots) .. string.sub(grant.lock, last + 1)
end
