-- Takes slots of locks that several hold, or says why there is none. It serves locks without a wait queue, an offer, and a lease
-- that is over, and tokens of which nothing is known. The rest goes to acquire.lua, which has far more to prepare.
--
-- KEYS of each lock five        ARGV[1] incarnation of the server
--   the lock                    and for each request six
--   seats                         which of the locks it is for
--   held                          token hash
--   ends                          attempt
--   wide                          ttl, ms
-- for each request                slots
--   the token's tombstone         owner, may be empty
-- and the fence
--
-- Returns for each request what acquire.lua does where it takes or refuses · -2 where nothing was done, and acquire.lua makes it a
--   lock for this script · -1 where nothing was done, and it will be the same for a while
--
-- Several requests for one lock read and write it once. Who is refused is told of the lock as it is behind them all.

local FENCE, INCARNATION, NOBODY_HASH = KEYS[#KEYS], ARGV[1], string.rep('0', TOKEN_HASH_DIGITS)
local COUNT = (#ARGV - 1) / 6
local TOMBSTONES = #KEYS - 1 - COUNT
local PASSING, LASTING = -2, -1
-- As in acquire.lua, which says why.
local replication_id = string.match(INCARNATION, '^%x+/(%x+)$')
local is_same = not replication_id
  or string.find(redis.call('INFO', 'replication'), 'master_replid:' .. replication_id, 1, true)
local time = redis.call('TIME')
local NOW_MS = time[1] * 1000 + math.floor(time[2] / 1000)
local NOW = string.format('%.0f', NOW_MS)

-- The one of those who hold it whose lease ends first, as it is told, and what is left of it.
local function first_of(held, ends)
  local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
  local slot_text, slots_text, attempt, digits, rest =
    string.match(redis.call('HGET', held, first[1]) or '', '^(%d+) (%d+) (%S+) (%d+)(.*)$')
  if not slot_text then return nil end
  local token = string.sub(first[1], 1, 1) == '!' and NOBODY_HASH or first[1]
  local told = token .. ' ' .. attempt .. ' ' .. digits .. '*' .. slot_text .. '*' .. slots_text .. rest
  return told, math.max(first[2] - NOW_MS - 1, 1)
end

-- What they are told of a lock that one holds alone.
local function refuse_all(asked, lock, text)
  local left_ms, replies = redis.call('PTTL', lock), {}
  for j, i in ipairs(asked) do
    if string.sub(text, 1, TOKEN_HASH_DIGITS) == ARGV[6 * i - 3] or left_ms <= 0 then return LASTING end
    replies[j] = { 2, text, left_ms, 0, 0 }
  end
  return replies
end

local function take(which, asked)
  local lock, tickets, held, ends, wide = unpack(KEYS, 5 * which - 4, 5 * which)
  local absent, fields = { tickets }, { '*' }
  for j, i in ipairs(asked) do absent[j + 1], fields[j + 1] = KEYS[TOMBSTONES + i], ARGV[6 * i - 3] end
  if not is_same or redis.call('EXISTS', unpack(absent)) > 0 then return LASTING end
  local text = redis.call('GET', lock)
  if not text then return PASSING end
  if string.sub(text, 1, 1) ~= '?' then return refuse_all(asked, lock, text) end
  if string.sub(text, 1, 2) ~= '?*' then return LASTING end
  local known = redis.call('HMGET', held, unpack(fields))
  local least = tonumber(redis.call('ZRANGE', wide, 0, 0, 'WITHSCORES')[2])
  local count = redis.call('ZCARD', ends) - 1
  if known[1] ~= '' or not least or count < 1
    or #redis.call('ZRANGEBYSCORE', ends, '-inf', NOW, 'LIMIT', 0, 1) > 0 then return PASSING end

  local is_asked, are_taken, taken, longest_ms = {}, {}, 0, 0
  for j, i in ipairs(asked) do
    local token, slots = ARGV[6 * i - 3], tonumber(ARGV[6 * i])
    -- Or it is asked for twice.
    if known[j + 1] or is_asked[token] then return PASSING end
    is_asked[token] = true
    if count < math.min(least, slots) then
      taken, count, least = taken + 1, count + 1, math.min(least, slots)
      local at = string.find(text, '.', 3, true) or #text + 1
      -- Where none holds a slot that is marked, acquire.lua mends that.
      if at - 2 > least then return PASSING end
      are_taken[j], text = at - 2, string.sub(text, 1, at - 1) .. '#' .. string.sub(text, at + 1)
      longest_ms = math.max(longest_ms, tonumber(ARGV[6 * i - 1]))
    end
  end

  local replies, grants, lease_ends, said = {}, {}, {}, {}
  local number = 0
  if taken > 0 then
    if redis.call('PTTL', lock) < longest_ms + AFTER_END_MS / 2 then return PASSING end
    local last = redis.call('HINCRBY', FENCE, INCARNATION, taken)
    number = last - taken
    if number + 1 < SMALLEST_NUMBER or last > LARGEST_NUMBER then
      -- As in fence.lua, which says why.
      redis.call('HINCRBY', FENCE, INCARNATION, -taken)
      return LASTING
    end
  end
  for j, i in ipairs(asked) do
    if are_taken[j] then
      local token, attempt, ttl_text, slots_text, owner = unpack(ARGV, 6 * i - 3, 6 * i + 1)
      local ttl_ms = tonumber(ttl_text)
      number = number + 1
      local rest = attempt .. ' ' .. string.format('%.0f', number)
      local slot_text, n = string.format('%.0f', are_taken[j]), #grants
      grants[n + 1], grants[n + 2] = token, slot_text .. ' ' .. slots_text .. ' ' .. rest .. ' ' .. owner
      lease_ends[n + 1], lease_ends[n + 2] = string.format('%.0f', NOW_MS + 1 + ttl_ms), token
      said[n + 1], said[n + 2] = slots_text, token
      replies[j] = { 0, token .. ' ' .. rest .. '*' .. slot_text .. '*' .. slots_text .. ' ' .. owner, ttl_ms }
    end
  end
  if taken > 0 then
    -- In the order of pool.lua.
    redis.call('SET', lock, text, 'KEEPTTL')
    redis.call('ZADD', wide, unpack(said))
    redis.call('HSET', held, unpack(grants))
    redis.call('ZADD', ends, unpack(lease_ends))
  end
  if taken < #asked then
    local told, left_ms = first_of(held, ends)
    for j in ipairs(asked) do
      replies[j] = replies[j] or (told and { 2, told, left_ms, 0, 0, '0', 0, '', count, least } or LASTING)
    end
  end
  return replies
end

return each_lock(COUNT, function(i) return ARGV[6 * i - 4] end, take)
