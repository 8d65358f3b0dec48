-- Ends the place of the worker with this number, or removes its result.
--
-- KEYS[1] the record   ARGV[1] number of the grant   ARGV[2] '1': certainly nothing was done   ARGV[3] memory of a crash, ms
--
-- Returns { 0 } broken, now or before · { 1 } no record · { 3, number } another grant's · { 9 } not ours

local record = record_of(KEYS[1])
if not record then return { 1 } end
if not record.kind then return { 9 } end
-- Never by less than the number: a copy of this that comes late must not end the next grant.
if record.digits ~= ARGV[1] then return { 3, record.digits } end
if ARGV[2] == '1' then
  redis.call('DEL', KEYS[1])
elseif record.token ~= NOBODY_HASH then
  leave(KEYS[1], record, false, tonumber(ARGV[3]))
end
return { 0 }
