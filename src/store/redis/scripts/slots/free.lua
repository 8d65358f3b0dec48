-- Frees a slot without terms of a lock that others hold too, where there is no wait queue, no lease is over, and the token has no
-- tombstone. It stands in front of release.lua, in one script with it, for the reason of take.lua.

local text = redis.call('GET', KEYS[1]) or ''
if string.sub(text, 1, 2) == '?*' and redis.call('EXISTS', KEYS[2]) == 0
  and (not KEYS[10] or redis.call('EXISTS', KEYS[10]) == 0) and redis.call('EXISTS', KEYS[9]) == 1 then
  local known = redis.call('HMGET', KEYS[7], '*', ARGV[1])
  local slot, rest = string.match(known[2] or '', '^(%d+) %d+ (%S+ %d+ .*)$')
  local time = redis.call('TIME')
  local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  -- Besides its own and another's there is one that stands for none.
  if known[1] == '' and slot and redis.call('ZCARD', KEYS[8]) > 2
    and #redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', now_ms, 'LIMIT', 0, 1) == 0
    and redis.call('ZREM', KEYS[8], ARGV[1]) == 1 then
    redis.call('ZREM', KEYS[9], ARGV[1])
    redis.call('HDEL', KEYS[7], ARGV[1])
    redis.call('SET', KEYS[1], string.sub(text, 1, slot + 1) .. '.' .. string.sub(text, slot + 3), 'KEEPTTL')
    if KEYS[10] then redis.call('SET', KEYS[10], '0', 'PX', ARGV[3]) end
    return { 0, ARGV[1] .. ' ' .. rest, 0 }
  end
end
