-- Starts the run of fencing numbers of a server that a gateway has just met, unless it runs already.
--
-- KEYS[1] the fence    ARGV[1] the incarnation
--
-- Returns 1 if the run was started, else 0.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
start_run(KEYS[1], ARGV[1])
return 1
