-- The keys of a lock that several hold live so long after the last lease. They are lengthened where less than half of that would
-- be left.
local AFTER_END_MS = 60000
