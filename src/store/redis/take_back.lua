-- Undoes a grant that nobody learnt of, and voids its attempt, so that a copy that arrives later takes nothing.
--
-- KEYS[1] the lock            ARGV[1] token hash, 64 hex digits
-- KEYS[2] the token's mark    ARGV[2] attempt, 32 hex digits
--                             ARGV[3] life of the mark, ms
--
-- Returns 1 if a lock was deleted, else 0.

local MOST_VOIDED = 1000

-- Both are read before anything is written: a script that errs keeps what it wrote.
local lock = redis.call('GET', KEYS[1])
local mark = redis.call('GET', KEYS[2])
local deleted = 0
if lock and token_of(lock) == ARGV[1] and attempt_of(lock) == ARGV[2] then
  deleted = redis.call('DEL', KEYS[1])
end

if not is_final(mark) then
  mark = mark or '!'
  if not string.find(mark, ARGV[2], 1, true) then mark = mark .. ' ' .. ARGV[2] end
  -- A token retried without end must not grow a mark without end: its oldest attempts go first.
  if #mark > 1 + 33 * MOST_VOIDED then mark = '!' .. string.sub(mark, -33 * MOST_VOIDED) end
  -- As in release.lua, DEL comes first for a server that is out of memory.
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[2], mark, 'PX', ARGV[3])
end
return deleted
