-- Sets a worker's lease to the longer of what is left and the ttl, and pins the grant. A lease that is over is not revived.
--
-- KEYS[1] the record   ARGV[1] token hash                      ARGV[3] ttl, ms
--                      ARGV[2] number of the grant, or empty   ARGV[4] memory of a crash, ms
--
-- Returns as told() in record.lua: 0 renewed
--   { 1 } done · { 2 } not begun, { 3, number } superseded, { 4, number } superseded, and done · { 5 } over · { 9 } not ours

local record = record_of(KEYS[1])
if record and not record.kind then return { 9 } end
local outcome, digits = refusal(record, ARGV[1], ARGV[2])
if outcome then return { outcome, digits } end
if record.kind == 'd' then return { 1 } end
if not runs(record) then return { 5 } end
record.attempt, record.at_ms = '-', math.max(record.at_ms, lease_end(tonumber(ARGV[3])))
rewrite(KEYS[1], record, tonumber(ARGV[4]))
return told(0, KEYS[1], record)
