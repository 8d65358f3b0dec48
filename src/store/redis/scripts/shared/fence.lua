-- The run of fencing tokens; it is put in front of the scripts that start one.
--
-- The fence is a hash: the incarnation of the server -> the last number that it gave. Under Sentinel it also has `epoch` ->
-- the config-epoch under which the server's run began.

-- The name by which the server's run goes on, or nothing. Under Sentinel a server is known by its run_id alone. A gateway
-- with the address of the server itself uses a longer name, and all gateways go on with that run. If each started its own,
-- they would restart each other's without end, and so lift the numbers of a deposed primary. The longer name changes sooner,
-- so the other way round is not safe. A run whose start failed does not count.
local function run_of(key, incarnation)
  local runs = redis.call('HGETALL', key)
  for i = 1, #runs, 2 do
    local is_its = string.find(runs[i], incarnation, 1, true) == 1
    if is_its and (tonumber(runs[i + 1]) or 0) >= SMALLEST_NUMBER then return runs[i] end
  end
end

-- Starts the incarnation's run above the server's clock and above every number that was given before it, and returns the
-- number it starts at. A run that begins at the present is above all numbers that were lost with the data.
local function start_run(key, incarnation, epoch)
  local time = redis.call('TIME')
  local start = time[1] * 1000000 + time[2]
  local before = redis.call('HGETALL', key)
  for i = 2, #before, 2 do
    start = math.max(start, (tonumber(before[i]) or 0) + 1)
  end
  -- A server that is out of memory allows HSET only to a script that has written already, and HDEL always.
  redis.call('HDEL', key, '')
  -- tostring() would write 1.79e+15.
  redis.call('HSET', key, incarnation, string.format('%.0f', start))
  if epoch then redis.call('HSET', key, 'epoch', epoch) end
  for i = 1, #before, 2 do
    if before[i] ~= incarnation and before[i] ~= 'epoch' then redis.call('HDEL', key, before[i]) end
  end
  return start
end
