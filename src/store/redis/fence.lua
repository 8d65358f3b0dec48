-- The run of fencing numbers; it is put in front of the scripts that start one.
--
-- The fence is a hash with one field: the incarnation of the server -> the last number that it gave.

-- Starts the incarnation's run above the server's clock and above every number that was given before it, and
-- returns the number it starts at. A run that begins at the present outdoes whatever was lost with the data.
local function start_run(key, incarnation)
  local time = redis.call('TIME')
  local start = time[1] * 1000000 + time[2]
  for _, last in ipairs(redis.call('HVALS', key)) do
    start = math.max(start, (tonumber(last) or 0) + 1)
  end
  redis.call('DEL', key)
  -- tostring() would write 1.79e+15.
  redis.call('HSET', key, incarnation, string.format('%.0f', start))
  return start
end
