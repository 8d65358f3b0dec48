-- Takes a slot of a lock that several hold, where there is no wait queue, no lease is over, and nothing is known of the token.
-- It stands in front of acquire.lua, in one script with it, which does the same and all else: to make the functions of the rest
-- takes longer than this.

local slots = tonumber(ARGV[15] or nil) or 1
local may_take = ARGV[5] == 'grant' or ARGV[5] == 'join' or ARGV[5] == 'rejoin'
local is_plain = ARGV[11] == '' and ARGV[13] == '' and ARGV[14] == ''
-- What a cluster must be asked before is left to acquire.lua.
local text = slots > 1 and may_take and is_plain and not string.find(ARGV[8], '/', 1, true) and redis.call('GET', KEYS[1]) or ''
if string.sub(text, 1, 2) == '?*' and redis.call('EXISTS', KEYS[2], KEYS[10]) == 0 then
  local known = redis.call('HMGET', KEYS[7], '*', ARGV[1])
  local least = redis.call('ZRANGE', KEYS[9], 0, 0, 'WITHSCORES')[2]
  local count = redis.call('ZCARD', KEYS[8]) - 1
  local time, ttl_ms = redis.call('TIME'), tonumber(ARGV[6])
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  -- No offer, no slot of its own, and room for it.
  if known[1] == '' and not known[2] and least and count > 0 and count < math.min(tonumber(least), slots)
    and #redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, 1) == 0
    and redis.call('PTTL', KEYS[1]) >= ttl_ms + AFTER_END_MS / 2 then
    local number = redis.call('HINCRBY', KEYS[11], ARGV[8], 1)
    if number >= SMALLEST_NUMBER and number <= LARGEST_NUMBER then
      local at = string.find(text, '.', 3, true) or #text + 1
      local slot_text, digits = string.format('%.0f', at - 2), string.format('%.0f', number)
      redis.call('HSET', KEYS[7], ARGV[1], slot_text .. ' ' .. ARGV[15] .. ' ' .. ARGV[2] .. ' ' .. digits .. ' ' .. ARGV[7])
      redis.call('ZADD', KEYS[8], string.format('%.0f', now_ms + 1 + ttl_ms), ARGV[1])
      redis.call('ZADD', KEYS[9], ARGV[15], ARGV[1])
      redis.call('SET', KEYS[1], string.sub(text, 1, at - 1) .. '#' .. string.sub(text, at + 1), 'KEEPTTL')
      return { 0, ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. digits .. '*' .. slot_text .. '*' .. ARGV[15] .. ' ' .. ARGV[7], ttl_ms }
    end
  end
end
