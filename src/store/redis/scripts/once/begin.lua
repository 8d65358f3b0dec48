-- Grants the places of workers, or says why not, or returns results.
--
-- KEYS for each record two     ARGV[1] incarnation of the server
--   the record                 ARGV[2] memory of a crash, ms
--   the token's tombstone      ARGV[3] '1': there is room for new records
-- and the fence                and for each record four
--                                the line of a new record up to its number: 'w', token hash and attempt, with a space behind each
--                                ttl, ms
--                                this line behind the end of the lease: ' 0 ', keep in ms, space, fingerprint or a dash, ' 0 ',
--                                  owner, which may be empty
--                                two digits: whether a place that somebody had may be taken over, and whether the token's place
--                                  is confirmed, and never granted
--
-- Returns the number of the grant where the record is new, and else as told() in record.lua:
--   0 granted, now or by this attempt · 1 the token's already, and pinned now · 2 another works · 3 may not be taken over
--   4 done, as one text: the age of the result, what is left of the record, a line's end, and the record
--   10 done, and too long for a script to tell: of the head, what stands before the end of the number
--   5 fingerprint differs, 6 token released, 7 attempt voided, 8 no room, 9 not ours (these alone)

local FENCE, INCARNATION, MEMORY_MS, HAS_ROOM = KEYS[#KEYS], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

-- Most records are new, and then nothing needs to be read. Where two of a call ask for one record, the second must be.
local COUNT = (#KEYS - 1) / 2
local ARE_NEW = redis.call('EXISTS', unpack(KEYS, 1, 2 * COUNT)) == 0
local was_asked_for = {}

-- As in acquire.lua, which says why: where all records are new, at once for all.
local number, spare = 0, 0
local function mint()
  if spare > 0 then
    number, spare = number + 1, spare - 1
    return number
  end
  local replication_id = string.match(INCARNATION, '^%x+/(%x+)$')
  if replication_id then
    local is_same = string.find(redis.call('INFO', 'replication'), 'master_replid:' .. replication_id, 1, true)
    if not is_same then return nil, 'STALE the server was a replica in the meantime' end
  end
  local first, behind = count_numbers(FENCE, INCARNATION, ARE_NEW and COUNT or 1)
  if not first then return nil, behind end
  number, spare = first, behind
  return number
end

return each(COUNT, function(i)
  local RECORD, TOMBSTONE = KEYS[2 * i - 1], KEYS[2 * i]
  local start_of_line, ttl_ms, end_of_line, may = unpack(ARGV, 4 * i, 4 * i + 3)
  local is_new = ARE_NEW and not was_asked_for[RECORD]
  if ARE_NEW then was_asked_for[RECORD] = true end
  local only_confirms = string.sub(may, 2) == '1'

  -- Most are new. Of those, no more than this is looked at.
  if is_new and HAS_ROOM and not only_confirms then
    local number, why = mint()
    if not number then return redis.error_reply(why) end
    local at_ms = lease_end(tonumber(ttl_ms))
    local head = start_of_line .. whole(number) .. ' ' .. whole(at_ms) .. end_of_line
    redis.call('SET', RECORD, head, 'PX', whole(at_ms - NOW_MS + MEMORY_MS))
    return number
  end

  local text = is_new and '' or start_of(RECORD)
  if string.sub(text, 1, 1) == 'd' then
    -- Many ask for work that is done. Only what they are told is taken out of the record.
    local at_digits, needed = string.match(text, '^d%x+ %S+ %d+ (%d+) %d+ %d+ (%S+) %d+ %S+ [^\n]*\n[^\n]*\n')
    if not at_digits then return { 9 } end
    if needed ~= '-' and needed ~= string.match(end_of_line, '^ 0 %d+ (%S+)') then return { 5 } end
    local age_ms, left_ms = math.max(NOW_MS - at_digits, 0), math.max(life_of(RECORD) - 1, 0)
    if #text <= LAST_OF_HEAD then return whole(age_ms) .. ' ' .. whole(left_ms) .. '\n' .. text end
    return { 10, string.match(text, '^%S+ %S+ %d+'), age_ms, left_ms }
  end

  local TOKEN, ATTEMPT = string.match(start_of_line, '^w(%x+) (%S+) $')
  local keep_ms, fingerprint, owner = string.match(end_of_line, '^ 0 (%d+) (%S+) 0 (.*)$')
  local record = record_in(text)
  if record and not record.kind then return { 9 } end
  if record and record.fingerprint ~= '-' and record.fingerprint ~= fingerprint then return { 5 } end

  local tombstone = not is_new and redis.call('GET', TOMBSTONE)
  local is_running = record and runs(record)
  local is_own = record and record.token == TOKEN
  -- A final tombstone begins with a digit. The rest of what lock.lua has is not needed here, and takes time to prepare.
  if tombstone and string.find(tombstone, '^%d') then return { 6 } end
  if only_confirms and not (is_own and is_running) then return { 6 } end
  if tombstone and string.find(tombstone, ATTEMPT, 1, true) then return { 7 } end

  if is_own and record.attempt == ATTEMPT then
    -- A copy of the same command: the same grant, which may still have to be undone. Where its lease is over, nobody waits for
    -- the answer to a copy.
    return is_running and told(0, RECORD, record) or { 7 }
  end
  if is_own and is_running then
    record.attempt, record.at_ms = '-', math.max(record.at_ms, lease_end(tonumber(ttl_ms)))
    rewrite(RECORD, record, MEMORY_MS)
    return told(1, RECORD, record)
  end
  if is_running then return told(2, RECORD, record) end

  -- Who had the place before counts, unless that is done: nobody's place was counted when it was left.
  local had_worker = record and record.token ~= NOBODY_HASH
  local earlier = record and record.earlier + (had_worker and 1 or 0) or 0
  local before = had_worker and record.digits or record and record.before or '0'
  if earlier > 0 and string.sub(may, 1, 1) ~= '1' then return told(3, RECORD, record) end
  if not record and not HAS_ROOM then return { 8 } end

  local number, why = mint()
  if not number then return redis.error_reply(why) end
  local at_ms = lease_end(tonumber(ttl_ms))
  local granted = {
    token = TOKEN, attempt = ATTEMPT, digits = whole(number), at_ms = at_ms, earlier = earlier,
    -- It stays what the first grant said.
    keep = keep_ms, fingerprint = record and record.fingerprint or fingerprint, before = before, owner = owner,
    former = record and record.head,
  }
  write(RECORD, granted, MEMORY_MS, record and life_of(RECORD) or 0)
  return told(0, RECORD, granted)
end)
