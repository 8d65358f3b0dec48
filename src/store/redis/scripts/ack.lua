-- Writes a grant once more and as it is, so that a WAIT behind this on the same connection speaks of it.
--
-- KEYS[1] the lock    ARGV[1] token hash
--                     ARGV[2] fencing token
--
-- Returns 1 · 0 the grant is not there: its lease is over, or the server is another one by now, or has lost it, or the lock's TTL

local lock, left_ms = held(KEYS[1])
-- Its number tells a grant from every other of the same token, and stays when a repeated PUT pins it.
if not lock or left_ms < 0 or token_of(lock) ~= ARGV[1] or string.match(lock, '^%d+', NUMBER_AT) ~= ARGV[2] then return 0 end
-- A server that is out of memory allows this, and SET only to a script that has written already.
redis.call('PEXPIRE', KEYS[1], left_ms)
return 1
