-- What all scripts of records share; it is put in front of each of them.
--
-- A record is a string with a TTL, and begins with a line:
--   `w<token hash> <attempt> <number> <end of lease> <earlier> <keep> <fingerprint> <number before> <owner>`   not done
--   `d<token hash> - <number> <time of storing> <earlier> <end of lease> <fingerprint> <number before> <status> <owner>`   done;
--     behind it come a line with the media type, which may be empty, and the result. Tabs may stand behind the owner, who has none.
-- Times are in ms by the server's clock. A pinned grant has a dash for its attempt, so that nothing takes it back. There is a
-- dash also for a fingerprint or a status that was not said, and a 0 for a number that is not known. Nobody's place has zeros
-- for its token hash, and its lease is over. A place that was taken over has a second line, until there is a result: the line that was
-- found. A worker that has done nothing leaves it so.

local NOBODY_HASH = string.rep('0', TOKEN_HASH_DIGITS)
-- A gateway keeps texts so short that both lines end before it. The result itself is read only where it is told, or compared.
local LAST_OF_HEAD = 1023
-- A record whose end was taken away, as by a restore that leaves TTLs out, gets one when it is looked at.
local LIFE_WITHOUT_END_MS = 7 * 24 * 3600 * 1000

local clock = redis.call('TIME')
local NOW_MS = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function whole(number) return string.format('%.0f', number) end

-- What is left of a record, in ms; negative where there is none.
local function life_of(key)
  local left_ms = redis.call('PTTL', key)
  if left_ms ~= -1 then return left_ms end
  redis.call('PEXPIRE', key, LIFE_WITHOUT_END_MS)
  return LIFE_WITHOUT_END_MS
end

-- Writes a record as it is: a server that is out of memory allows PEXPIRE always, and SET only to a script that has written already.
-- Returns what is left of it, in ms.
local function touch(key)
  local left_ms = life_of(key)
  redis.call('PEXPIRE', key, math.max(left_ms, 1))
  return left_ms
end

-- What a record begins with. A short one is read whole.
local function start_of(key) return redis.call('GETRANGE', key, 0, LAST_OF_HEAD) end

-- The record that begins so, if there is one. It has no `kind` if no script of ours wrote it.
local function record_in(text)
  if text == '' then return nil end
  local kind, token, attempt, digits, at_digits, earlier_digits, keep, fingerprint, before, owner =
    string.match(text, '^([wd])(%x+) (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) ([^\n]*)')
  -- A done record's second line belongs to the head, and what was read of its result does not.
  local head = kind and string.match(text, kind == 'd' and '^[^\n]*\n[^\n]*\n' or '^[^\n]*')
  if not head then return {} end
  local status
  if kind == 'd' then status, owner = string.match(owner, '^(%S+) ([^\t]*)') end
  return {
    kind = kind, token = token, attempt = attempt, digits = digits, at_ms = tonumber(at_digits), earlier = tonumber(earlier_digits),
    keep = keep, fingerprint = fingerprint, before = before, status = status, owner = owner, head = head,
    former = kind == 'w' and string.match(text, '\n(.*)') or nil,
  }
end

local function record_of(key) return record_in(start_of(key)) end

-- Whether its worker's lease runs.
local function runs(record) return record.kind == 'w' and record.at_ms > NOW_MS end

-- The reply that tells of a record: { outcome, its head, what is left of the lease or, of a result, its age, what is left of the
-- record }, in ms. The clock is read in whole ms, so what is left may be up to one less than it looks.
local function told(outcome, key, record)
  local ms = record.kind == 'w' and record.at_ms - NOW_MS - 1 or NOW_MS - record.at_ms
  return { outcome, record.head, math.max(ms, 0), math.max((record.life_ms or life_of(key)) - 1, 0) }
end

-- When a lease ends that begins now.
local function lease_end(ttl_ms) return NOW_MS + 1 + ttl_ms end

-- The line of a record that is not done.
local function line(token, attempt, digits, at_ms, earlier, keep, fingerprint, before, owner)
  return 'w' .. token .. ' ' .. attempt .. ' ' .. digits .. ' ' .. whole(at_ms) .. ' ' .. whole(earlier) .. ' ' .. keep .. ' '
    .. fingerprint .. ' ' .. before .. ' ' .. owner
end

-- Writes a record that is not done. It is remembered for `memory_ms` after its lease, and never shorter than before: `left_ms`.
local function write(key, record, memory_ms, left_ms)
  record.life_ms = math.max(left_ms, math.max(record.at_ms - NOW_MS, 0) + memory_ms)
  record.kind = 'w'
  record.head = line(record.token, record.attempt, record.digits, record.at_ms, record.earlier, record.keep,
    record.fingerprint, record.before, record.owner)
  redis.call('SET', key, record.head .. (record.former and '\n' .. record.former or ''), 'PX', whole(record.life_ms))
end

-- The same on a server that is out of memory.
local function rewrite(key, record, memory_ms) write(key, record, memory_ms, touch(key)) end

-- Ends a place, or makes one that has ended out of a result. A clean end leaves what was found: a worker that was overtaken may
-- still store its result, and what nobody may have done leaves nothing.
local function leave(key, record, is_clean, memory_ms)
  if is_clean and record.earlier == 0 then return redis.call('DEL', key) end
  if is_clean and record.former then return rewrite(key, record_in(record.former), memory_ms) end
  if not is_clean then record.earlier, record.before = record.earlier + 1, record.digits end
  record.token, record.attempt, record.at_ms, record.former = NOBODY_HASH, '-', 0, nil
  rewrite(key, record, memory_ms)
end

-- The outcome for a token that is not the record's, or shows another number than its grant's; with the record's number if
-- another was granted the place: 2 not begun · 3 superseded · 4 superseded, and done. Nothing for the worker.
local function refusal(record, token, number)
  if not record or record.token == NOBODY_HASH then return 2, '' end
  if record.token == token and (number == '' or number == record.digits) then return nil end
  return record.kind == 'd' and 4 or 3, record.digits
end
