-- Says of some locks who holds them, and how many wait for each.
--
-- KEYS[1..] locks, each with its wait queue and `away` as in wait_queue.lua and `held`, `ends` and `wide` as in slots.lua behind
--   it, where ARGV[1] is 6 and not 1
--
-- Returns for each lock { outcome, lock or '', ms left, waiters }: 0 free, or not ours · 1 held

local KEYS_EACH, MOST_LOST = tonumber(ARGV[1]), 100

local function tell(i)
  local lock, left_ms, offer = held(KEYS[i])
  if are_several(offer) and KEYS_EACH == 6 and redis.call('EXISTS', unpack(KEYS, i + 3, i + 5)) == 3 then
    local first = read_slots(unpack(KEYS, i + 3, i + 5)).first(1)[1]
    if first then lock, left_ms = told(first), first.left_ms end
  end
  local waiters = lock and KEYS_EACH == 6 and count_waiters(KEYS[i + 1], KEYS[i + 2], MOST_LOST) or 0
  return lock and { 1, lock, left_ms, waiters }
end

local reply = {}
for i = 1, #KEYS, KEYS_EACH do
  -- A key that is not ours does not stop the list of the others, and neither does a grant that cannot be read.
  local is_ours, lock = pcall(tell, i)
  reply[#reply + 1] = is_ours and lock or { 0, '', 0, 0 }
end
return reply
