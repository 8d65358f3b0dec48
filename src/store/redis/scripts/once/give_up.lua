-- Ends the place of a worker. With a tombstone, the token is refused from then on, and its repetitions are answered the same.
--
-- KEYS[1] the record                            ARGV[1] token hash                  ARGV[3] memory of a crash, ms
-- KEYS[2] the token's tombstone, may be absent  ARGV[2] '1': certainly nothing was  ARGV[4] life of a tombstone, ms
--                                                 done
--
-- Returns { 0 } given up · { 1 } done · { 2 } not begun, { 3, number } superseded, { 4, number } superseded, and done · { 9 } not
--   ours. The same stands in the tombstone: an outcome, and a number where there is one

local leaves_tombstone = KEYS[2] ~= nil
if leaves_tombstone then
  local tombstone = redis.call('GET', KEYS[2])
  if is_final(tombstone) then
    redis.call('PEXPIRE', KEYS[2], ARGV[4])
    local said, digits = string.match(tombstone, '^(%d) ?(%d*)$')
    return { tonumber(said), digits }
  end
end

local record = record_of(KEYS[1])
if record and not record.kind then return { 9 } end
local outcome, digits = refusal(record, ARGV[1], '')
if not outcome then outcome, digits = record.kind == 'd' and 1 or 0, '' end
-- It is not the worker again either when another leaves the place as it was found.
local was_former = record and record.former and string.find(record.former, ARGV[1], 1, true) == 2
if was_former then record.former = nil end
if outcome == 0 then
  leave(KEYS[1], record, ARGV[2] == '1', tonumber(ARGV[3]))
elseif was_former then
  rewrite(KEYS[1], record, tonumber(ARGV[3]))
end
if leaves_tombstone then set_tombstone(KEYS[2], whole(outcome) .. (digits ~= '' and ' ' .. digits or ''), ARGV[4]) end
return { outcome, digits }
