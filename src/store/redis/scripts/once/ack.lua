-- Writes a record once more and as it is, so that a WAIT behind this on the same connection speaks of it.
--
-- KEYS[1] the record   ARGV[1] token hash   ARGV[2] number of the grant
--
-- Returns 1 · 0 the grant is not there: another has the place, or the server is another one by now, or has lost it

local record = record_of(KEYS[1])
if not record or record.token ~= ARGV[1] or record.digits ~= ARGV[2] then return 0 end
touch(KEYS[1])
return 1
