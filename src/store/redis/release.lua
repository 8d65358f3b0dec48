-- Frees a lock, if the token holds it. With a mark, the token is freed whatever the answer is.
--
-- KEYS[1] the lock                          ARGV[1] token hash, 64 hex digits
-- KEYS[2] the token's mark, may be absent   ARGV[2] life of the mark, ms
--
-- Returns 0 released · 1 nobody held it · 2 held by another

local leaves_mark = KEYS[2] ~= nil
if leaves_mark then
  local mark = redis.call('GET', KEYS[2])
  if is_final(mark) then return tonumber(string.sub(mark, 2)) end
end

local lock = held(KEYS[1])
local outcome = 0
if not lock then
  outcome = 1
elseif token_of(lock) ~= ARGV[1] then
  outcome = 2
else
  redis.call('DEL', KEYS[1])
end

if leaves_mark then
  -- A server that is out of memory allows SET only to a script that has written already, and DEL always.
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[2], '=' .. outcome, 'PX', ARGV[2])
end
return outcome
