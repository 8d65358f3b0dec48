-- Renews a slot without terms for its token. It stands in front of renew_slot.lua, in one script with it, for the reason of
-- take.lua.

if ARGV[3] == '' and string.sub(redis.call('GET', KEYS[1]) or '', 1, 2) == '?*' and redis.call('EXISTS', KEYS[9]) == 1 then
  local known = redis.call('HGET', KEYS[7], ARGV[1])
  local slot_text, slots_text, attempt, digits, owner = string.match(known or '', '^(%d+) (%d+) (%S+) (%d+) (.*)$')
  local ends_ms = slot_text and tonumber(redis.call('ZSCORE', KEYS[8], ARGV[1]) or nil)
  local time = redis.call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  if ends_ms and ends_ms > now_ms then
    local length_ms = math.max(ends_ms - now_ms - 1, 1, tonumber(ARGV[2]))
    if redis.call('PTTL', KEYS[1]) >= length_ms + AFTER_END_MS / 2 then
      local PINNED = string.rep('-', ATTEMPT_DIGITS)
      redis.call('HDEL', KEYS[7], '')
      if attempt ~= PINNED then
        redis.call('HSET', KEYS[7], ARGV[1], slot_text .. ' ' .. slots_text .. ' ' .. PINNED .. ' ' .. digits .. ' ' .. owner)
      end
      redis.call('ZADD', KEYS[8], string.format('%.0f', now_ms + 1 + length_ms), ARGV[1])
      return { 0, ARGV[1] .. ' ' .. PINNED .. ' ' .. digits .. '*' .. slot_text .. '*' .. slots_text .. ' ' .. owner, length_ms }
    end
  end
end
