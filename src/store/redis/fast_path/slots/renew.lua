-- Renews slots without terms for their tokens. The rest goes to renew_slot.lua.
--
-- KEYS of each lock four      ARGV for each request three
--   the lock                    which of the locks it is for
--   held                        token hash
--   ends                        ttl, ms
--   wide
--
-- Returns for each request { 0, the lock, ms left } · -1 where nothing was done

local PINNED = string.rep('-', ATTEMPT_DIGITS)
local time = redis.call('TIME')
local NOW_MS = time[1] * 1000 + math.floor(time[2] / 1000)

local function renew(which, asked)
  local lock, held, ends, wide = unpack(KEYS, 4 * which - 3, 4 * which)
  if string.sub(redis.call('GET', lock) or '', 1, 2) ~= '?*' or redis.call('EXISTS', wide) == 0 then return -1 end
  local fields, is_asked, replies, grants, lease_ends = {}, {}, {}, {}, {}
  for j, i in ipairs(asked) do fields[j] = ARGV[3 * i - 1] end
  local known, longest_ms = redis.call('HMGET', held, unpack(fields)), 0
  for j, i in ipairs(asked) do
    local token, ttl_ms = fields[j], tonumber(ARGV[3 * i])
    local slot_text, slots_text, attempt, digits, owner =
      string.match(known[j] or '', '^(%d+) (%d+) (%S+) (%d+) (.*)$')
    local ends_ms = slot_text and tonumber(redis.call('ZSCORE', ends, token) or nil)
    if not ends_ms or ends_ms <= NOW_MS then return -1 end
    -- The second one may not make shorter what the first one was told.
    if is_asked[token] then return -1 end
    is_asked[token] = true
    local length_ms = math.max(ends_ms - NOW_MS - 1, 1, ttl_ms)
    longest_ms = math.max(longest_ms, length_ms)
    if attempt ~= PINNED then
      local pinned = slot_text .. ' ' .. slots_text .. ' ' .. PINNED .. ' ' .. digits .. ' ' .. owner
      grants[#grants + 1], grants[#grants + 2] = token, pinned
    end
    lease_ends[2 * j - 1], lease_ends[2 * j] = string.format('%.0f', NOW_MS + 1 + length_ms), token
    local told = token .. ' ' .. PINNED .. ' ' .. digits .. '*' .. slot_text .. '*' .. slots_text .. ' ' .. owner
    replies[j] = { 0, told, length_ms }
  end
  if redis.call('PTTL', lock) < longest_ms + AFTER_END_MS / 2 then return -1 end

  -- HDEL is for a server that is out of memory, as in slots.lua.
  redis.call('HDEL', held, '')
  if #grants > 0 then redis.call('HSET', held, unpack(grants)) end
  redis.call('ZADD', ends, unpack(lease_ends))
  return replies
end

return each_lock(#ARGV / 3, function(i) return ARGV[3 * i - 2] end, renew)
