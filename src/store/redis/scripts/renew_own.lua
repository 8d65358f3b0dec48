-- Renews locks that their tokens hold and have pinned, and that have no terms. It stands in front of renew.lua, in one script
-- with it: what both are told is the same, and to make the functions of the rest takes longer than this.

local replies, is_over = {}, true
for i, key in ipairs(KEYS) do
  local token, ttl, by = unpack(ARGV, 3 * i - 2, 3 * i)
  local own = by == '' and redis.pcall('GET', key)
  if type(own) == 'string' and string.sub(own, 1, TOKEN_HASH_DIGITS) == token and string.find(own, '^%-+ %d+ ', ATTEMPT_AT) then
    local left_ms, ttl_ms = redis.call('PTTL', key), tonumber(ttl)
    if left_ms >= 0 then
      if ttl_ms > left_ms then redis.call('PEXPIRE', key, ttl_ms) end
      replies[i] = { 0, own, math.max(left_ms, ttl_ms) }
    end
  end
  is_over = is_over and replies[i]
end
if is_over then return #KEYS == 1 and replies[1] or replies end
