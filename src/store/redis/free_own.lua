-- Frees a lock that its token holds, where nobody waits for it, and it has no terms. The rest is release.lua's. A token that
-- holds a lock has no mark that is final, and a final one says all that one of voided attempts does.
--
-- KEYS[1] the lock    KEYS[2] seats   KEYS[3] the token's mark, may be absent
-- ARGV[1] token hash  ARGV[2] life of the mark, ms, where there is one
--
-- Returns the number of the grant that it ended, as a text · -1 where nothing was done
--
-- As in take_free.lua there are few texts, and no numbers.

local lock = redis.call('GET', KEYS[1])
if not lock or string.find(lock, ARGV[1], 1, true) ~= 1 then return -1 end
local number = string.match(lock, '^(%d+) ', 99)
if not number or redis.call('EXISTS', KEYS[2]) ~= 0 then return -1 end
redis.call('DEL', KEYS[1])
if KEYS[3] then redis.call('SET', KEYS[3], '0', 'PX', ARGV[2]) end
return number
