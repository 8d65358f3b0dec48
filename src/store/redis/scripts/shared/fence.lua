-- The run of fencing tokens; it is put in front of the scripts that start one, or count in one.
--
-- The fence is a hash: the incarnation of the server -> the last number that it gave. Under Sentinel it also has `epoch` ->
-- the config-epoch under which the server's run began.

local NO_NUMBER = 'FENCE fencing tokens end in June 2255, and the clock of the server is past that, or was: set it right'

-- The name by which the server's run goes on, or nothing. Under Sentinel a server is known by its run_id alone. A gateway
-- with the address of the server itself uses a longer name, and all gateways go on with that run. If each started its own,
-- they would restart each other's without end, and so lift the numbers of a deposed primary. The longer name changes sooner,
-- so the other way round is not safe. A run whose start failed does not count, and neither does one above the largest number.
local function run_of(key, incarnation)
  local runs = redis.call('HGETALL', key)
  for i = 1, #runs, 2 do
    local is_its = string.find(runs[i], incarnation, 1, true) == 1
    local last = tonumber(runs[i + 1]) or 0
    if is_its and last >= SMALLEST_NUMBER and last <= LARGEST_NUMBER then return runs[i] end
  end
end

-- Starts the incarnation's run above the server's clock and above every number that was given before it, and returns the
-- number it starts at. A run that begins at the present is above all numbers that were lost with the data. Nothing is written,
-- and nothing is returned, if it would begin above the largest number. A number above that was given to no grant: an earlier
-- version began a run there, by a clock that was wrong.
local function start_run(key, incarnation, epoch)
  local time = redis.call('TIME')
  local start = time[1] * 1000000 + time[2]
  local before = redis.call('HGETALL', key)
  for i = 2, #before, 2 do
    if (tonumber(before[i]) or 0) <= LARGEST_NUMBER then
      start = math.max(start, (tonumber(before[i]) or 0) + 1)
    end
  end
  if start > LARGEST_NUMBER then return nil end
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

-- Counts so many numbers in the incarnation's run, or one where the run must be found or started. Returns the first of them, and
-- how many are behind it; or nothing, and the error.
local function count_numbers(key, incarnation, many)
  local run, last = incarnation, redis.call('HINCRBY', key, incarnation, many)
  -- So few mean that this incarnation has no run here: first use, restart, failover or flush. A bit more means that a script
  -- failed while it started the run, and what it had counted stayed. For too many, see start_run().
  if last - many + 1 < SMALLEST_NUMBER or last - many > LARGEST_NUMBER then
    many, run = 1, run_of(key, incarnation)
    if run then redis.call('HDEL', key, incarnation) end
    last = run and redis.call('HINCRBY', key, run, 1) or start_run(key, incarnation)
    if not last then return nil, NO_NUMBER end
  end
  if last > LARGEST_NUMBER then
    -- A start would take what is above the largest number for no grant's.
    redis.call('HINCRBY', key, run, -many)
    return nil, NO_NUMBER
  end
  return last - many + 1, many - 1
end
