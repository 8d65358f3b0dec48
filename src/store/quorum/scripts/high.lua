-- Says the largest number that a server accepted, in any bucket, if it is part of the quorum by this epoch.
--
-- KEYS[1] the server's record   ARGV[1] run   ARGV[2] epoch of the list   ARGV[3] 1: also where it is in quarantine
--
-- Returns { 1, number }, or { 0 }. In quarantine the clock counts as a number that was accepted: the server knows no better.

local fields = redis.call('HGETALL', KEYS[1])
local record, high = {}, 0
for i = 1, #fields, 2 do
  if string.match(fields[i], '^b%d+$') or fields[i] == 'floor' then
    high = math.max(high, tonumber(fields[i + 1]))
  else
    record[fields[i]] = fields[i + 1]
  end
end
if record.run ~= ARGV[1] or record.epoch ~= ARGV[2] then return { 0 } end
if record.since ~= '0' and ARGV[3] ~= '1' then return { 0 } end
if record.since ~= '0' then
  local time = redis.call('TIME')
  high = math.max(high, time[1] * 1000000 + time[2])
end
return { 1, string.format('%.0f', high) }
