-- Frees a lock, if the token holds it. If its `min_hold` is not over, it stays taken until then, without a holder. With a
-- tombstone, the token is freed with every answer. The tombstone also refuses proposals that were accepted nowhere yet: the
-- releasing client does not know the attempts and numbers of its token.
--
-- KEYS[1] as in member.lua        ARGV[1..4] as in member.lua
-- KEYS[2] the lock                ARGV[5] token hash
-- KEYS[3] the token's tombstone   ARGV[6] life of the tombstone, ms; empty for none
-- KEYS[4] who waits for it        ARGV[7] the answer to give instead of what is found, may be empty
--                                 ARGV[8] 1: instead of an earlier answer, too
--                                         2: where there is none; an earlier one is not made to live longer
--                                 ARGV[9] the number of the lock, where it is known, which is burnt; else 0
--
-- Returns { outcome, number of the lock that was freed, ms for which it is kept or 0 }: 0 released · { 1 } it had no holder
--   { 2 } held by another · { 10 }, { 11 }, { 12 } the same, answered before

local leaves_tombstone = ARGV[6] ~= ''
local outcome = ARGV[7]
if leaves_tombstone and ARGV[8] ~= '1' then
  local tombstone = redis.call('GET', KEYS[3])
  -- As in redis/scripts/release.lua.
  if is_final(tombstone) and ARGV[8] == '0' then redis.call('PEXPIRE', KEYS[3], ARGV[6]) end
  if is_final(tombstone) then return { 10 + tonumber(tombstone) } end
end
local lock = held(KEYS[2])
local frees = lock and token_of(lock) == ARGV[5]
-- A token that has released the lock is told so again, also one that left no tombstone.
local is_released = frees or lock and was_held_by(lock, ARGV[5])
if outcome == '' then outcome = is_released and '0' or lock and '2' or '1' end
local kept_ms = frees and keep_released(KEYS[2], lock)
if frees and not kept_ms then redis.call('DEL', KEYS[2]) end
if leaves_tombstone then set_tombstone(KEYS[3], outcome, ARGV[6]) end
local number = tonumber(ARGV[9])
if number > high and not is_too_far(number) then
  -- For a server that is out of memory, as in give_up.lua.
  redis.call('PEXPIRE', KEYS[4], record[5])
  accept(number)
end
if not frees then return { tonumber(outcome) } end
tell(KEYS[4], KEYS[2])
return { tonumber(outcome), whole(number_of(lock)), kept_ms or 0 }
