-- Stores results, each if the token's grant is the record's last. Touches the records alone, so that it works while the slot is on
-- its way to another server.
--
-- KEYS for each record one   ARGV for each record six
--   the record                 token hash                      media type, which may be empty, newline, result
--                              number of the grant, or empty   short: stored also on a server that is full
--                              keep, ms, or empty                long: stored where there is room · no: a long one, and no room
--                              status, or a dash
-- and behind a single one, where its result was put aside (aside.rs): there. Then the result's place says how long that text is.
--
-- Returns { 0, number, ms for which it is kept, 1 if the lease was over } stored, and if that was before, with a 1 behind it
--   { 1 } another result is stored
--   { 2 } not begun, { 3, number } superseded, { 4, number } superseded, and done · { 5 } no room
--   { 6 } what was put aside is gone · { 9 } not ours

local NOW = whole(NOW_MS)
local COUNT = #ARGV / 6
local ASIDE = KEYS[COUNT + 1]

local reply = each(COUNT, function(i)
  local RECORD = KEYS[i]
  local token, number, keep_ms, status, result, room = unpack(ARGV, 6 * i - 5, 6 * i)
  local start = start_of(RECORD)
  if ASIDE and redis.call('STRLEN', ASIDE) ~= tonumber(result) then return { 6 } end
  -- Most are stored by the record's worker. Of those, only what the new line takes over is taken out of the old one.
  local digits, at_digits, earlier_digits, worker_keep, known, owner
  if string.sub(start, 1, 1) == 'w' and string.find(start, token, 2, true) == 2 then
    digits, at_digits, earlier_digits, worker_keep, known, owner =
      string.match(start, '^ %S+ (%d+) (%d+) (%d+) (%d+) (%S+ %d+) ([^\n]*)', TOKEN_HASH_DIGITS + 2)
  end

  if not digits or number ~= '' and number ~= digits then
    local record = record_in(start)
    if record and not record.kind then return { 9 } end
    local outcome, others = refusal(record, token, number)
    if outcome then return { outcome, others } end
    -- It is done, by this worker.
    local function told(key) return string.match(redis.call('GET', key) or '', '^[^\n]*\n(.*)$') end
    if record.status ~= status or told(RECORD) ~= (ASIDE and told(ASIDE) or result) then return { 1 } end
    local is_late = record.at_ms >= tonumber(record.keep)
    return { 0, record.digits, math.max(life_of(RECORD), 0), is_late and 1 or 0, 1 }
  end

  if room == 'no' then return { 5 } end
  local keep = keep_ms ~= '' and keep_ms or worker_keep
  local done = 'd' .. token .. ' - ' .. digits .. ' ' .. NOW .. ' ' .. earlier_digits .. ' ' .. at_digits .. ' ' .. known .. ' '
    .. status .. ' ' .. owner
  if ASIDE then
    -- A server that is out of memory allows PEXPIRE always, and SETRANGE to a script that has written already.
    redis.call('PEXPIRE', ASIDE, math.max(redis.call('PTTL', ASIDE), 1))
    redis.call('SETRANGE', ASIDE, 0, done)
    redis.call('RENAME', ASIDE, RECORD)
    redis.call('PEXPIRE', RECORD, keep)
    return { 0, digits, tonumber(keep), tonumber(at_digits) > NOW_MS and 0 or 1 }
  end
  done = done .. '\n' .. result
  local answer = redis.pcall('SET', RECORD, done, 'PX', keep)
  if answer.err and room == 'short' then
    touch(RECORD)
    answer = redis.pcall('SET', RECORD, done, 'PX', keep)
  end
  if answer.err then
    -- Redis 6.2 says first that a script has met it.
    local said = string.match(answer.err, '^@user_script: %d+: (.*)$') or answer.err
    -- The place is still the worker's, which may store a short result.
    if string.find(said, '^%-?OOM') then return { 5 } end
    return redis.error_reply(string.match(said, '^%-?(.*)$'))
  end
  return { 0, digits, tonumber(keep), tonumber(at_digits) > NOW_MS and 0 or 1 }
end)
if ASIDE then redis.call('DEL', ASIDE) end
return reply
