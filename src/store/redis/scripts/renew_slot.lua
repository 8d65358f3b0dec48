-- The same as renew.lua for a slot of a lock that several hold. A renewal does not know what it renews: renew.lua says of such a
-- lock that it has no holder, and then this is asked; and also where another holds it alone, or it cannot be read: see there.
-- Where slots were asked for lately, this is asked first.
--
-- KEYS[1..9] as in wait_queue.lua    ARGV[1..3] as in renew.lua
--
-- Returns what renew.lua does, but never 5: a slot that is kept belongs to no token

local FOUR = { KEYS[1], KEYS[7], KEYS[8], KEYS[9] }
local lock, _, offer = held(KEYS[1])
if lock then return is_readable(lock) and { 2 } or unreadable() end
if not are_several(offer) or redis.call('EXISTS', KEYS[7], KEYS[8], KEYS[9]) < 3 then return { 1 } end
local seen = read_slots(KEYS[7], KEYS[8], KEYS[9])
local own = seen.grant_of(ARGV[1])
if not own then return { seen.sharing() > 0 and 2 or 1 } end
local by = ARGV[3] ~= '' and ARGV[3] or PINNED
if ARGV[3] ~= '' and attempt_of(own.lock) ~= by then return { 4 } end
local length_ms, is_longest = renewed_ms(own.lock, own.left_ms, tonumber(ARGV[2]))
rewrite_grant(FOUR, own, with_attempt(own.lock, by), seen.NOW_MS, length_ms)
return { is_longest and 3 or 0, told(own), length_ms }
