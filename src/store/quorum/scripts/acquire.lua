-- Accepts a number for a lock that is free, or that the same attempt was accepted for before; or says why not.
--
-- KEYS[1] as in member.lua        ARGV[1..4] as in member.lua
-- KEYS[2] the lock                ARGV[5] token hash              ARGV[9]  number
-- KEYS[3] the token's tombstone   ARGV[6] attempt                 ARGV[10] owner, may be empty
-- KEYS[4] who waits for it        ARGV[7] grant, or confirm       ARGV[11] where to tell that the lock is free, may be empty
--                                 ARGV[8] ttl, ms                 ARGV[12] attempts that this one stands for, may be empty
--                                                                 ARGV[13] life of a tombstone, ms
--                                                                 ARGV[14] 1: the first number of this try
--                                                                 ARGV[15] max_hold, ms, may be empty
--                                                                 ARGV[16] min_hold, ms, may be empty
--                                                                 ARGV[17] slots   ARGV[18] 1: the attempt has waited
--                                                                 ARGV[19] 1: it waits if it is not granted the lock
--
-- Returns { outcome, lock, ms left, largest number }: 0 accepted · 1 the token holds it, pinned or claimed · 2 held by another
--   10 a connection of the token was granted it while this attempt waited
--   9 this attempt was accepted before, in an earlier try: the same grant, if most say so of the same number
--   { 3 } token released · { 4 } attempt voided · { 6 } it has no holder, or the token held it, if this may only confirm
--   { 7, largest number } a larger one was accepted · { 8, largest number } the number is too far ahead

local LOCK, TOKEN, ATTEMPT, SUPERSEDED = KEYS[2], ARGV[5], ARGV[6], ARGV[12]
local number = tonumber(ARGV[9])

local tombstone = redis.call('GET', KEYS[3])
if is_final(tombstone) then return { 3 } end
local lock, left_ms = held(LOCK)
-- As in redis/scripts/acquire.lua: an attempt that has claimed the lock is voided.
local claims = lock and token_of(lock) == TOKEN and is_of_connection(ATTEMPT)
local has_claimed = claims and attempt_of(lock) == once_told(ATTEMPT)
if tombstone and string.find(tombstone, ATTEMPT, 1, true) and not has_claimed then return { 4 } end
if is_too_long(ARGV[8]) then return { -5, whole(now_us) } end
if SUPERSEDED ~= '' then tombstone = void(KEYS[3], tombstone, SUPERSEDED, ARGV[13]) end

if lock and token_of(lock) ~= TOKEN then
  if ARGV[7] == 'confirm' and was_held_by(lock, TOKEN) then return { 6 } end
  if ARGV[11] ~= '' then
    -- For a server that is out of memory, which allows ZADD only to a script that has written already.
    redis.call('PEXPIRE', KEYS[4], record[5])
    redis.call('ZADD', KEYS[4], 0, ARGV[11])
    redis.call('PEXPIRE', KEYS[4], record[5])
  end
  return { 2, lock, left_ms, whole(high) }
end
if lock then
  local by = attempt_of(lock)
  if string.find(SUPERSEDED, by, 1, true) then
    -- A grant of an attempt that this one stands for now belongs to this one.
    lock = with_attempt(lock, ATTEMPT)
    redis.call('SET', LOCK, lock, 'KEEPTTL')
  elseif by ~= ATTEMPT then
    local is_taken_over = ARGV[18] == '1' and is_of_connection(by) and by ~= once_told(ATTEMPT)
    for attempt in string.gmatch(SUPERSEDED, '%S+') do is_taken_over = is_taken_over and by ~= once_told(attempt) end
    if is_taken_over then return { 10, lock, left_ms, whole(high) } end
    -- Setting the TTL anew may round it up: once in the life of a grant, not with every look.
    -- One that waits goes on with this attempt, unless most servers say so. Then the gateway voids it.
    if claims and ARGV[19] ~= '1' then void(KEYS[3], tombstone, ATTEMPT, ARGV[13]) end
    if by ~= once_told(ATTEMPT) then lock = hold_by(LOCK, lock, once_told(ATTEMPT), left_ms, left_ms) end
    return { 1, lock, left_ms, whole(high) }
  end
  if ARGV[14] == '1' then return { 9, lock, left_ms, whole(high) } end
end
if ARGV[7] == 'confirm' then return { 6 } end

if is_passed(number, high) then return { 7, whole(high) } end
if is_too_far(number) then return { 8, whole(high) } end
accept(number)
lock = TOKEN .. ' ' .. ATTEMPT .. ' ' .. whole(number) .. terms_of(ARGV[15], ARGV[16]) .. ' ' .. ARGV[10]
redis.call('SET', LOCK, lock, 'PX', ARGV[8])
return { 0, lock, tonumber(ARGV[8]), whole(high) }
