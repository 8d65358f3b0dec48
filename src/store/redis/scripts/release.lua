-- Frees a lock, if the token holds it, or gives up the token's place in the line. With a mark, the token is freed
-- whatever the answer is. A lock whose `min_hold` is not over stays taken until then, by nobody.
--
-- KEYS[1..6] as in line.lua                 ARGV[1], ARGV[3..4] as in line.lua
-- KEYS[7] the token's mark, may be absent
--
-- Returns { outcome, lock that was freed, ms for which it is kept or 0 }: 0 released, or, without the rest, left the line
--   1 nobody held it, 2 held by another (these two alone)
--   0 alone also where the token has released it before, and it is kept

local leaves_mark = KEYS[7] ~= nil
if leaves_mark then
  local mark = redis.call('GET', KEYS[7])
  if is_final(mark) then return { tonumber(mark) } end
end

local lock, _, offer = held(KEYS[1])
local line = redis.call('EXISTS', KEYS[2]) == 1 and open_line()
local seat = line and line.seat_of(ARGV[1])
local outcome = 0
local frees = lock and token_of(lock) == ARGV[1]
local kept_ms = frees and keep_released(KEYS[1], lock)
if frees then
  -- With a line it is handed on below.
  if not line and not kept_ms then redis.call('DEL', KEYS[1]) end
elseif not seat then
  -- A token that has released the lock is told so again, also one that left no mark.
  outcome = lock and (was_held_by(lock, ARGV[1]) and 0 or 2) or 1
end
if seat then
  line.remove_place(ARGV[1])
  line.tell_to_look(seat)
  if seat.former then line.tell_to_look(seat.former) end
end

if leaves_mark then
  set_mark(KEYS[7], outcome, ARGV[3])
end
if line and kept_ms then
  line.await_end(line.clock(), kept_ms)
elseif line and (frees or offer and offer.token == ARGV[1]) then
  line.hand_off((line.clock()))
end
if frees then return { outcome, lock, kept_ms or 0 } end
return { outcome }
