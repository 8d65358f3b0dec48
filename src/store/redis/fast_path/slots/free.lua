-- Frees slots without terms of locks that others hold too, where there is no wait queue and no lease is over. The rest goes to
-- release.lua.
--
-- KEYS of each lock five      ARGV[1] life of a tombstone, ms
--   the lock                  ARGV[2] how many locks there are
--   seats                     and for each request two
--   held                        which of the locks it is for
--   ends                        token hash
--   wide
-- and the tombstones of the first requests, which may be fewer
--
-- Returns for each request { 0, lock that was freed, 0 } · where nothing was done as take.lua, and -1 only if somebody waits

local TOMBSTONES = 5 * ARGV[2]
local PASSING, LASTING = -2, -1
local time = redis.call('TIME')
local NOW = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function free(which, asked)
  local lock, tickets, held, ends, wide = unpack(KEYS, 5 * which - 4, 5 * which)
  local text = redis.call('GET', lock) or ''
  if redis.call('EXISTS', tickets) > 0 then return LASTING end
  if string.sub(text, 1, 2) ~= '?*' or redis.call('EXISTS', wide) == 0 then return PASSING end
  local tombstones, fields, is_asked, slots, rests = {}, { '*' }, {}, {}, {}
  for j, i in ipairs(asked) do
    tombstones[#tombstones + 1], fields[j + 1] = KEYS[TOMBSTONES + i], ARGV[2 * i + 2]
  end
  if #tombstones > 0 and redis.call('EXISTS', unpack(tombstones)) > 0 then return PASSING end
  local known = redis.call('HMGET', held, unpack(fields))
  -- Besides those who leave and another there is a member that stands for none.
  if known[1] ~= '' or redis.call('ZCARD', ends) < 2 + #asked
    or #redis.call('ZRANGEBYSCORE', ends, '-inf', NOW, 'LIMIT', 0, 1) > 0 then return PASSING end
  for j, i in ipairs(asked) do
    local token = ARGV[2 * i + 2]
    slots[j], rests[j] = string.match(known[j + 1] or '', '^(%d+) %d+ (%S+ %d+ .*)$')
    if not slots[j] or is_asked[token] then return PASSING end
    is_asked[token] = true
  end

  local replies, freed = {}, {}
  for j, i in ipairs(asked) do
    local token, slot, rest, tombstone = ARGV[2 * i + 2], slots[j], rests[j], KEYS[TOMBSTONES + i]
    replies[j] = PASSING
    -- In the order of pool.lua.
    redis.call('ZREM', wide, token)
    if redis.call('ZREM', ends, token) > 0 then
      replies[j], freed[#freed + 1] = { 0, token .. ' ' .. rest, 0 }, token
      text = string.sub(text, 1, slot + 1) .. '.' .. string.sub(text, slot + 3)
      if tombstone then redis.call('SET', tombstone, '0', 'PX', ARGV[1]) end
    end
  end
  if #freed > 0 then
    redis.call('HDEL', held, unpack(freed))
    redis.call('SET', lock, text, 'KEEPTTL')
  end
  return replies
end

return each_lock(#ARGV / 2 - 1, function(i) return ARGV[2 * i + 1] end, free)
