-- Changing who holds a lock that several hold; it is put behind terms.lua and slots.lua in scripts that hand locks off.
--
-- KEYS[1] the lock    KEYS[7] held    KEYS[8] ends    KEYS[9] wide

-- `token` is the one whose grant is read with the rest, if there is one.
local function open_pool(token)
  local LOCK, HELD, ENDS, WIDE = KEYS[1], KEYS[7], KEYS[8], KEYS[9]
  local FOUR = { LOCK, HELD, ENDS, WIDE }
  local MOST_SLOTS, MOST_OFFERS = 1000, 30
  local seen = read_slots(HELD, ENDS, WIDE)
  local NOW_MS = seen.NOW_MS

  -- The characters of the slots; nothing where none holds it.
  local text = redis.call('GET', LOCK)
  local taken = text and string.sub(text, 1, 2) == '?*' and redis.call('EXISTS', HELD, ENDS, WIDE) == 3
    and string.sub(text, 3) or nil
  local texts = taken and redis.call('HMGET', HELD, ALL, token or ALL) or {}
  local own = token and seen.grant_in(token, texts[2])
  -- Those that stand, and those that have lapsed and were not taken away yet.
  local offers, lapsed, are_kept = {}, {}, true
  -- How many grants there are, and the smallest number that one of them has said; nothing until they are asked for.
  local grants, least_said
  for line in string.gmatch(texts[1] or '', '[^\n]+') do
    local token, slots, attempt, gateway, start_ms = string.match(line, '^(%S+) (%d+) (%S+) (%S+) (%d+)$')
    local offer = {
      token = token, slots = tonumber(slots), attempt = attempt, gateway = gateway, start_ms = tonumber(start_ms), line = line,
    }
    local list = NOW_MS - offer.start_ms < OFFER_MS and offers or lapsed
    list[#list + 1] = offer
  end

  -- PEXPIRE comes first for a server that is out of memory, as in lock.lua. A grant has counted its number before.
  local function begin(ms)
    if taken then return end
    redis.call('PEXPIRE', LOCK, AFTER_END_MS)
    redis.call('SET', LOCK, '?*', 'PX', AFTER_END_MS)
    redis.call('DEL', HELD, ENDS, WIDE)
    redis.call('HSET', HELD, ALL, '')
    redis.call('ZADD', ENDS, whole(LARGEST_NUMBER), ALL)
    redis.call('ZADD', WIDE, whole(MOST_SLOTS + 1), ALL)
    live_for(FOUR, ms)
    taken, offers, lapsed, grants = '', {}, {}, nil
  end

  local function set_slot(slot, mark)
    taken = string.sub(taken, 1, slot - 1) .. mark .. string.sub(taken, slot + 1)
    redis.call('SET', LOCK, '?*' .. taken, 'KEEPTTL')
  end

  local function put(grant, lock, left_ms) rewrite_grant(FOUR, grant, lock, NOW_MS, left_ms) end

  local function add(grant, lock, left_ms, ...)
    write_grant(FOUR, grant, lock, NOW_MS, left_ms, ...)
    redis.call('ZADD', WIDE, whole(grant.slots), grant.field)
    set_slot(grant.slot, '#')
    if grants then grants, least_said = grants + 1, math.min(least_said, grant.slots) end
    return grant
  end

  local function count_grants()
    if grants then return end
    grants, least_said = redis.call('ZCARD', ENDS) - 1, tonumber(redis.call('ZRANGE', WIDE, 0, 0, 'WITHSCORES')[2])
  end

  -- How many hold it once what has ended is removed, and the smallest number that they have said; offers count, but for one
  -- token's.
  local function room_beside(token)
    if not taken then return 0, MOST_SLOTS end
    count_grants()
    local held, least = grants, least_said
    for _, offer in ipairs(offers) do
      if offer.token ~= token then held, least = held + 1, math.min(least, offer.slots) end
    end
    return held, least
  end

  local function free_slot() return string.find(taken, '.', 1, true) or #taken + 1 end

  -- Marks those slots that are held, and no others. A server whose file was cut off within a script may do a part of it at its
  -- second start, and so leave a slot marked that none holds.
  local function mend()
    local fields, are_held, last = redis.call('HGETALL', HELD), {}, 0
    for i = 1, #fields, 2 do
      local slot = fields[i] ~= ALL and tonumber(string.match(fields[i + 1], '^%d+'))
      if slot then are_held[slot], last = true, math.max(last, slot) end
    end
    taken = ''
    for slot = 1, last do
      if are_held[slot] then taken = taken .. '#' else taken = taken .. '.' end
    end
  end

  local function without(list, token)
    local left = {}
    for _, offer in ipairs(list) do
      if offer.token ~= token then left[#left + 1] = offer end
    end
    return left
  end

  -- Leaves a token's offer out. Returns whether there was one, and nothing is written yet.
  local function leave_out(token)
    local before = #offers + #lapsed
    offers, lapsed = without(offers, token), without(lapsed, token)
    return #offers + #lapsed < before
  end

  local function listed()
    local text = ''
    for _, offer in ipairs(lapsed) do text = text .. offer.line .. '\n' end
    for _, offer in ipairs(offers) do text = text .. offer.line .. '\n' end
    return text
  end

  -- Gives the smallest slot that is free to a token that was admitted, in the place of what it was offered. Fewer hold it than any
  -- of them has said, so there is one.
  local function take(token, slots, lock, ttl_ms)
    begin(ttl_ms)
    local _, least = room_beside(token)
    if free_slot() > math.min(least, slots) then mend() end
    local slot = free_slot()
    local grant = { field = token, slot = slot, slots = slots }
    if leave_out(token) then return add(grant, lock, ttl_ms, ALL, listed()) end
    return add(grant, lock, ttl_ms)
  end

  local function remove(grant)
    redis.call('HDEL', HELD, grant.field)
    redis.call('ZREM', ENDS, grant.field)
    redis.call('ZREM', WIDE, grant.field)
    set_slot(grant.slot, '.')
    grants = nil
  end

  -- Ends a grant. If its `min_hold` is not over, its slot stays taken until then, for which time in ms is returned.
  local function release(grant)
    local _, least_ms = terms_left(grant.lock)
    local former, digits, owner = string.sub(grant.lock, 1, ATTEMPT_DIGITS), string.match(grant.lock, '^%S+ %S+ (%d+)%S*(.*)$')
    remove(grant)
    if not least_ms or least_ms <= 0 then return nil end
    local kept = { field = '!' .. whole(grant.slot), slot = grant.slot, slots = grant.slots }
    add(kept, KEPT .. ' ' .. former .. ' ' .. digits .. owner, least_ms)
    return least_ms
  end

  -- Removes what has ended. Only scripts do that which hand off then.
  local function purge()
    if not taken then return end
    for _, field in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', whole(NOW_MS))) do
      local slot = string.match(redis.call('HGET', HELD, field) or '', '^%d+')
      remove({ field = field, slot = tonumber(slot or MOST_SLOTS + 1) })
    end
  end

  -- Whether one more may hold it who says so many; an offer to `token` does not count.
  local function admits(slots, token)
    local held, least = room_beside(token)
    return held < math.min(least, slots)
  end

  local function is_full() return not admits(MOST_SLOTS) end

  local function is_free()
    if not taken then return true end
    count_grants()
    return grants + #offers == 0
  end

  -- The grant of this number; where a lost fence gave it twice, the first by token. It looks at all of them, which is right for an
  -- operator and for no other.
  local function numbered(digits)
    local fields, found = redis.call('HGETALL', HELD), nil
    for i = 1, #fields, 2 do
      local is_it = string.match(fields[i + 1], '^%d+ %d+ %S+ (%d+)') == digits and fields[i] ~= ALL
      if is_it and (not found or fields[i] < found) then found = fields[i] end
    end
    return found and seen.grant_of(found)
  end

  local function write_offers()
    redis.call('HDEL', HELD, '')
    redis.call('HSET', HELD, ALL, listed())
    are_kept = true
    if redis.call('PTTL', LOCK) < AFTER_END_MS / 2 then live_for(FOUR, 0) end
  end

  local function offer_of(token)
    for _, offer in ipairs(offers) do
      if offer.token == token then return offer end
    end
  end

  -- An offer that is given back has not lapsed. Returns whether there was one.
  local function withdraw(token)
    local is_there = leave_out(token)
    if is_there then write_offers() end
    return is_there
  end

  -- Makes an offer, which is not kept yet.
  local function add_offer(token, ticket)
    begin(OFFER_MS)
    local offer = {
      token = token, slots = ticket.slots, attempt = ticket.attempt, gateway = ticket.gateway, start_ms = NOW_MS,
      line = token .. ' ' .. whole(ticket.slots) .. ' ' .. ticket.attempt .. ' ' .. ticket.gateway .. ' ' .. whole(NOW_MS),
    }
    offers[#offers + 1], are_kept = offer, false
    return offer
  end

  -- Writes down the offers that were made. It is known who let an offer lapse until the next have been made.
  local function keep_offers(knows_lapsed)
    if not knows_lapsed and #lapsed > 0 then lapsed, are_kept = {}, false end
    if not are_kept then write_offers() end
  end

  -- What is left of it where another holds the lock alone, or is offered it.
  local function forget()
    if taken then redis.call('DEL', HELD, ENDS, WIDE) end
    taken, offers, lapsed, are_kept, grants = nil, {}, {}, true, nil
  end

  local function close_if_free()
    if not taken or not is_free() then return end
    redis.call('DEL', LOCK)
    forget()
  end

  return {
    seen = seen, own = own, put = put, take = take, remove = remove, release = release, purge = purge, admits = admits,
    is_full = is_full, is_free = is_free, numbered = numbered, offer_of = offer_of, withdraw = withdraw, add_offer = add_offer,
    keep_offers = keep_offers, forget = forget, close_if_free = close_if_free,
    is_there = function() return taken ~= nil end,
    is_rest = function() return not taken and string.sub(text or '', 1, 2) == '?*' end,
    offers = function() return offers end,
    lapsed = function() return lapsed end,
    has_room_for_offers = function() return #offers < MOST_OFFERS end,
  }
end

-- For how long a lock stays with its token that a connection held, and that was told before of leases which run for so many ms.
local function left_to_token_ms(lock, left_ms, told_ms)
  local _, least_ms = terms_left(lock)
  return math.max(math.min(left_ms, told_ms), least_ms or 0)
end

-- The lock if several hold it, and else the offer of it, if that is what it is. What is left of a lock of several of which a key
-- is missing is neither.
local function pool_in(offer, token)
  if not are_several(offer) then return nil, offer end
  local pool = open_pool(token)
  if pool.is_there() then return pool, nil end
  return nil, not pool.is_rest() and offer or nil
end
