-- Renews a lock that its token holds and has pinned, and that has no terms. It stands in front of renew.lua, in one
-- script with it: what both are told is the same, and to make the functions of the rest takes longer than this.

local own = ARGV[3] == '' and redis.call('GET', KEYS[1])
if own and string.sub(own, 1, TOKEN_HASH_DIGITS) == ARGV[1] and string.find(own, '^%-+ %d+ ', ATTEMPT_AT) then
  local left_ms, ttl_ms = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
  if left_ms >= 0 then
    if ttl_ms > left_ms then redis.call('PEXPIRE', KEYS[1], ttl_ms) end
    return { 0, own, math.max(left_ms, ttl_ms) }
  end
end
