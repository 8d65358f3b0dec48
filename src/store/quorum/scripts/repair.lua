-- Gives a server a lock that most others hold, and that it lacks, or holds for a shorter time. It must run while those
-- certainly hold it, by the lease before they were renewed: later the lock may have been released, and granted to another.
--
-- KEYS[1] as in member.lua        ARGV[1..4] as in member.lua; here the deadline is always given
-- KEYS[2] the lock                ARGV[5] token hash   ARGV[7] owner, may be empty
-- KEYS[3] the token's tombstone   ARGV[6] number       ARGV[8] ms left
--                                                      ARGV[9] up to which number none can be granted any more
--                                 ARGV[10] the attempt of the connection that holds it, else empty
--                                 ARGV[11] ms left of max_hold, ARGV[12] of min_hold, each may be empty
--                                 ARGV[13] ms from when the ms left were counted to the deadline
--
-- Returns { 0 } if the lock is there now · { 2 } held by another, by a larger number, or by another attempt
--   { 3 } token released, attempt voided, or grant broken

local tombstone = redis.call('GET', KEYS[3])
local attempt = ARGV[10] ~= '' and ARGV[10] or PINNED
if is_final(tombstone) or tombstone and string.find(tombstone, attempt, 1, true) then return { 3 } end
local number = tonumber(ARGV[6])
if tombstone and string.find(tombstone, broken(number), 1, true) then return { 3 } end
local lock, left_ms = held(KEYS[2])
if lock and token_of(lock) ~= ARGV[5] then return { 2 } end
-- A client was told of a lock that is pinned, and a connection must not end it.
if lock and attempt ~= PINNED and attempt_of(lock) ~= attempt then return { 2 } end
-- A smaller number of the token can never be granted any more. A larger one may be about to be.
if lock and number_of(lock) > math.max(number, tonumber(ARGV[9])) then return { 2 } end
if is_too_long(ARGV[8]) then return { -5, whole(now_us) } end
-- For a server that is out of memory, as in give_up.lua.
redis.call('PEXPIRE', KEYS[3], record[5])
if number > high then accept(number) end
-- What has passed since is no longer left: this may come late.
local passed_ms = math.max(0, tonumber(ARGV[13]) - (tonumber(ARGV[3]) - now_us) / 1000)
local most_ms = tonumber(ARGV[11])
local terms = terms_of(most_ms and math.floor(most_ms - passed_ms), ARGV[12])
local repaired = ARGV[5] .. ' ' .. attempt .. ' ' .. whole(number) .. terms .. ' ' .. ARGV[7]
redis.call('SET', KEYS[2], repaired, 'PX', math.max(left_ms or 0, 1, math.floor(tonumber(ARGV[8]) - passed_ms)))
return { 0 }
