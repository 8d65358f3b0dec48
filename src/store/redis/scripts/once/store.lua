-- Stores a result, if the token's grant is the record's last. Touches the record alone, so that it works while the slot is on its
-- way to another server.
--
-- KEYS[1] the record   ARGV[1] token hash                      ARGV[5] media type, which may be empty, newline, result
--                      ARGV[2] number of the grant, or empty   ARGV[6] short: stored also on a server that is full
--                      ARGV[3] keep, ms, or empty                long: stored where there is room · no: a long one, and no room
--                      ARGV[4] status, or a dash
--
-- Returns { 0, number, ms for which it is kept, 1 if the lease was over } stored, now or before · { 1 } another result is stored
--   { 2 } not begun, { 3, number } superseded, { 4, number } superseded, and done · { 5 } no room · { 9 } not ours

local RECORD = KEYS[1]
local record = record_of(RECORD)
if record and not record.kind then return { 9 } end
local outcome, digits = refusal(record, ARGV[1], ARGV[2])
if outcome then return { outcome, digits } end

if record.kind == 'd' then
  local stored = string.match(redis.call('GET', RECORD), '^[^\n]*\n(.*)$')
  if record.status ~= ARGV[4] or stored ~= ARGV[5] then return { 1 } end
  local is_late = record.at_ms >= tonumber(record.keep)
  return { 0, record.digits, math.max(redis.call('PTTL', RECORD), 0), is_late and 1 or 0 }
end

if ARGV[6] == 'no' then return { 5 } end
local keep = ARGV[3] ~= '' and ARGV[3] or record.keep
-- A server that is out of memory allows SET only to a script that has written already, and PEXPIRE always.
if ARGV[6] == 'short' then redis.call('PEXPIRE', RECORD, math.max(redis.call('PTTL', RECORD), 1)) end
local header = 'd' .. record.token .. ' - ' .. record.digits .. ' ' .. whole(NOW_MS) .. ' ' .. whole(record.earlier) .. ' '
  .. whole(record.at_ms) .. ' ' .. record.fingerprint .. ' ' .. record.before .. ' ' .. ARGV[4] .. ' ' .. record.owner
local set = redis.pcall('SET', RECORD, header .. '\n' .. ARGV[5], 'PX', keep)
if set.err then
  -- The place is still the worker's, which may store a short result.
  return string.find(set.err, '^%-?OOM') and { 5 } or set
end
return { 0, record.digits, tonumber(keep), runs(record) and 0 or 1 }
