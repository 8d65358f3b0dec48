-- How many wait for a lock; it is put behind lock.lua where that is told and nothing is changed.

-- Tickets that were left for too long are not counted, and at most so many are looked for. Only scripts that write remove
-- them.
local function count_waiters(queue, away, most_lost)
  local waiters = redis.call('ZCARD', queue)
  if waiters == 0 then return 0 end
  local time = redis.call('TIME')
  local lost = redis.call('ZRANGEBYSCORE', away, '-inf', time[1] * 1000, 'LIMIT', 0, most_lost)
  local places = #lost > 0 and redis.call('ZMSCORE', queue, unpack(lost)) or {}
  for i = 1, #lost do
    if places[i] then waiters = waiters - 1 end
  end
  return waiters
end
