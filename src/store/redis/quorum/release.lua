-- Frees a token, and the lock if it holds it. The mark also keeps out what was accepted nowhere yet: whoever releases does
-- not know by which attempts and numbers the token may have been proposed.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2] the lock              ARGV[5] token hash
-- KEYS[3] the token's mark      ARGV[6] life of the mark, ms
-- KEYS[4] who waits for it      ARGV[7] the answer that is known already, may be empty
--
-- Returns { outcome }: 0 released · 1 nobody held it · 2 held by another

local mark = redis.call('GET', KEYS[3])
local outcome = ARGV[7]
if outcome == '' and is_final(mark) then return { tonumber(string.sub(mark, 2)) } end
local lock = held(KEYS[2])
local frees = lock and token_of(lock) == ARGV[5]
if outcome == '' then outcome = frees and '0' or lock and '2' or '1' end
if frees then redis.call('DEL', KEYS[2]) end
set_mark(KEYS[3], '=' .. outcome, ARGV[6])
if frees then tell(KEYS[4], KEYS[2]) end
return { tonumber(outcome) }
