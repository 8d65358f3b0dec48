-- Undoes an attempt that no client was told of: the record is as it was before. It also voids the attempt, so that a copy that
-- arrives later does nothing.
--
-- KEYS[1] the record                ARGV[1] token hash   ARGV[3] memory of a crash, ms
-- KEYS[2] the token's tombstone     ARGV[2] attempt      ARGV[4] life of a tombstone, ms
--
-- Returns { 1 } if it had been granted the place · { 0 }

local record = record_of(KEYS[1])
local tombstone = redis.call('GET', KEYS[2])
local is_its = record and record.kind == 'w' and record.token == ARGV[1] and record.attempt == ARGV[2]
if is_its then leave(KEYS[1], record, true, tonumber(ARGV[3])) end
void(KEYS[2], tombstone, ARGV[2], ARGV[4])
-- As in roll_back.lua.
if is_final(tombstone) then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
return { is_its and 1 or 0 }
