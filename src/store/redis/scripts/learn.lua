-- Starts the run of fencing tokens of a server, unless it runs already. Under Sentinel a gateway that connects starts it
-- anew if the config-epoch has changed: another server may have been the primary in between, and have given numbers that
-- this one never heard of.
--
-- KEYS[1] the fence    ARGV[1] the incarnation
--                      the rest only under Sentinel:
--                      ARGV[2] the config-epoch by which the server is called the primary
--                      ARGV[3] connect: by a majority · all: by every sentinel, so that it is believed also where it is
--                              lower · look: by whom it was when the gateway connected, so that nothing starts anew
--
-- Returns the name of the run · nothing if the epoch is lower than the one that is known · an error if no run can begin

local run = run_of(KEYS[1], ARGV[1])
local goes_on = run
local epoch = tonumber(ARGV[2])
if epoch then
  local known = tonumber(redis.call('HGET', KEYS[1], 'epoch') or nil)
  if known and epoch < known and ARGV[3] ~= 'all' then return false end
  goes_on = run and known and (epoch == known or ARGV[3] == 'look')
end
run = run or ARGV[1]
if not goes_on and not start_run(KEYS[1], run, ARGV[2]) then return redis.error_reply(NO_NUMBER) end
return run
