-- Sets the lease to the longer of what is left and the ttl, if the token holds the lock. It is pinned, also where a connection holds
-- it: its token takes it over. A connection that renews by its attempt pins nothing.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2] the lock              ARGV[5] token hash   ARGV[7] attempt by which a connection holds it, else empty
--                               ARGV[6] ttl, ms
--
-- Returns { 0, lock, ms left, ms that were left before, ms that are left of max_hold and of min_hold, each may be empty }
--   3 the same, where the lease lasts as long as `max_hold` allows already
--   { 1 } it has no holder · { 2 } held by another · { 4 } held by another attempt
--   { 5 } the token has released it, and it is kept

local lock, left_ms = held(KEYS[2])
if not lock then return { 1 } end
if token_of(lock) ~= ARGV[5] then return { was_held_by(lock, ARGV[5]) and 5 or 2 } end
if is_too_long(ARGV[6]) then return { -5, whole(now_us) } end
local outcome, renewed, renewed_left_ms = renew(KEYS[2], lock, left_ms, tonumber(ARGV[6]), ARGV[7])
if outcome == 4 then return { 4 } end
local most_ms, least_ms = terms_left(lock)
return { outcome, renewed, renewed_left_ms, left_ms, most_ms or '', least_ms or '' }
