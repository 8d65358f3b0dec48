-- Says of some locks who holds them here.
--
-- KEYS[1] as in member.lua      ARGV[1..4] as in member.lua
-- KEYS[2..] locks
--
-- Returns 0, and behind it for each lock { outcome, lock, ms left }: { 0 } free, or not ours · 1 held

local reply = { 0 }
for i = 2, #KEYS do
  -- A key that is not ours does not stop the list of the others.
  local is_ours, lock, left_ms = pcall(held, KEYS[i])
  reply[i] = is_ours and lock and { 1, lock, left_ms } or { 0 }
end
return reply
