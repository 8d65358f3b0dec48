-- Changing who holds a lock that several hold; it is put behind terms.lua and slots.lua in scripts that hand locks off.
--
-- KEYS[1] the lock    KEYS[7] held    KEYS[8] ends    KEYS[9] wide

-- `token` is the one whose grant is read with the rest, if there is one.
--
-- What it returns has in `taken` the characters of the slots, if any is held or offered, and in `own` the token's grant. `offers`
-- stand; those in `lapsed` do not, and were not taken away yet. To make a function takes the longer the more variables it shares
-- with others, so they share this table.
local function open_pool(token)
  local LOCK, HELD, ENDS, WIDE = KEYS[1], KEYS[7], KEYS[8], KEYS[9]
  local FOUR = { LOCK, HELD, ENDS, WIDE }
  local MOST_SLOTS, MOST_OFFERS = 1000, 30
  local seen = read_slots(HELD, ENDS, WIDE)
  local NOW_MS = seen.NOW_MS

  local pool, taken, is_rest, own
  local offers, lapsed = {}, {}
  -- How many grants there are, until `purge` with those that have ended. Up to two fields of `wide`, each with its number behind
  -- it: that of the grant which has said the fewest slots, and the next. Without any, they must be read anew.
  local grants, least = 0, {}
  -- Whether the offers are in the keys as they are here; whether this script has written; whether none that has ended is left.
  local are_kept, has_written, is_purged = true, false, false

  local text = redis.call('GET', LOCK)
  if text and string.sub(text, 1, 2) == '?*' then
    local texts = redis.call('HMGET', HELD, ALL, token or ALL)
    grants, least = redis.call('ZCARD', ENDS) - 1, redis.call('ZRANGE', WIDE, 0, 1, 'WITHSCORES')
    is_rest = not texts[1] or grants < 0 or not least[1]
    -- The key is there, and what stands in it for all is not.
    if not texts[1] and redis.call('EXISTS', HELD) == 1 then throw_unreadable() end
    if not is_rest then
      taken = string.sub(text, 3)
      own = token and seen.grant_in(token, texts[2])
      for line in string.gmatch(texts[1], '[^\n]+') do
        local token, slots, attempt, gateway, start_ms = string.match(line, '^(%S+) (%d+) (%S+) (%S+) (%d+)$')
        local offer = {
          token = token, slots = tonumber(slots), attempt = attempt, gateway = gateway, start_ms = tonumber(start_ms), line = line,
        }
        local list = NOW_MS - offer.start_ms < OFFER_MS and offers or lapsed
        list[#list + 1] = offer
      end
    end
  end

  -- PEXPIRE comes first for a server that is out of memory, as in lock.lua. A grant has counted its number before.
  local function begin(ms)
    if pool.taken then return end
    redis.call('PEXPIRE', LOCK, AFTER_END_MS)
    redis.call('SET', LOCK, '?*', 'PX', AFTER_END_MS)
    redis.call('DEL', HELD, ENDS, WIDE)
    redis.call('HSET', HELD, ALL, '')
    redis.call('ZADD', ENDS, LARGEST_NUMBER, ALL)
    redis.call('ZADD', WIDE, MOST_SLOTS + 1, ALL)
    live_for(FOUR, ms)
    pool.taken, pool.offers, pool.lapsed = '', {}, {}
    grants, least, has_written = 0, { ALL, MOST_SLOTS + 1 }, true
  end

  local function set_slot(slot, mark)
    pool.taken = string.sub(pool.taken, 1, slot - 1) .. mark .. string.sub(pool.taken, slot + 1)
    redis.call('SET', LOCK, '?*' .. pool.taken, 'KEEPTTL')
  end

  local function put(grant, lock, left_ms) rewrite_grant(FOUR, grant, lock, NOW_MS, left_ms) end

  local function least_said()
    if not least[1] then least = redis.call('ZRANGE', WIDE, 0, 1, 'WITHSCORES') end
    return tonumber(least[2])
  end

  -- A server that is killed may keep a part of it. The end of the lease comes last: without it, the rest is no grant.
  local function add(grant, lock, left_ms, ...)
    set_slot(grant.slot, '#')
    redis.call('ZADD', WIDE, grant.slots, grant.field)
    write_grant(FOUR, grant, lock, NOW_MS, left_ms, ...)
    -- The one that was the next may not be so any more.
    local is_least = grant.slots < least_said()
    grants, least = grants + 1, is_least and { grant.field, grant.slots } or { least[1], least[2] }
    has_written = true
    return grant
  end

  -- How many hold it once what has ended is removed, and the smallest number that they have said; offers count, but for one
  -- token's.
  local function room_beside(token)
    if not pool.taken then return 0, MOST_SLOTS end
    local held, fewest = grants, least_said()
    for _, offer in ipairs(pool.offers) do
      if offer.token ~= token then held, fewest = held + 1, math.min(fewest, offer.slots) end
    end
    return held, fewest
  end

  local function free_slot() return string.find(pool.taken, '.', 1, true) or #pool.taken + 1 end

  -- Marks those slots that are held, and no others. A server whose file was cut off within a script may do a part of it at its
  -- second start, and so leave a slot marked that none holds.
  local function mend()
    local are_held, last = {}, 0
    for _, grant in ipairs(seen.first(-1)) do
      if not grant.slot then error('a grant cannot be read, so it is not known which slot it holds') end
      are_held[grant.slot], last = true, math.max(last, grant.slot)
    end
    pool.taken = ''
    for slot = 1, last do
      if are_held[slot] then pool.taken = pool.taken .. '#' else pool.taken = pool.taken .. '.' end
    end
  end

  -- Leaves a token's offer out. Returns whether there was one, and nothing is written yet.
  local function leave_out(token)
    if #pool.offers + #pool.lapsed == 0 then return false end
    local is_there = false
    for _, kind in ipairs({ 'offers', 'lapsed' }) do
      local others = {}
      for _, offer in ipairs(pool[kind]) do
        if offer.token == token then is_there = true else others[#others + 1] = offer end
      end
      pool[kind] = others
    end
    return is_there
  end

  local function listed()
    local text = ''
    for _, offer in ipairs(pool.lapsed) do text = text .. offer.line .. '\n' end
    for _, offer in ipairs(pool.offers) do text = text .. offer.line .. '\n' end
    return text
  end

  -- Gives the smallest slot that is free to a token that was admitted, in the place of what it was offered. Fewer hold it than any
  -- of them has said, so there is one.
  local function take(token, slots, lock, ttl_ms)
    begin(ttl_ms)
    local _, fewest = room_beside(token)
    if free_slot() > math.min(fewest, slots) then mend() end
    local slot = free_slot()
    local grant = { field = token, slot = slot, slots = slots }
    if leave_out(token) then return add(grant, lock, ttl_ms, ALL, listed()) end
    return add(grant, lock, ttl_ms)
  end

  local function remove(grant)
    redis.call('ZREM', WIDE, grant.field)
    redis.call('ZREM', ENDS, grant.field)
    redis.call('HDEL', HELD, grant.field)
    set_slot(grant.slot, '.')
    grants, has_written = grants - 1, true
    if least[1] == grant.field then
      least = { least[3], least[4] }
    elseif least[3] == grant.field then
      least = { least[1], least[2] }
    end
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
    if not pool.taken then return end
    for _, field in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW_MS)) do
      local slot = string.match(redis.call('HGET', HELD, field) or '', '^%d+')
      remove({ field = field, slot = tonumber(slot or MOST_SLOTS + 1) })
    end
    is_purged = true
  end

  -- How many hold it, and the smallest number that one of them has said.
  local function sharing()
    if is_purged then return grants, least_said() end
    return seen.sharing()
  end

  -- Whether one more may hold it who says so many; an offer to `token` does not count.
  local function admits(slots, token)
    local held, fewest = room_beside(token)
    return held < math.min(fewest, slots)
  end

  local function is_full() return not admits(MOST_SLOTS) end

  local function is_free() return not pool.taken or grants + #pool.offers == 0 end

  local function write_offers()
    if not has_written then redis.call('HDEL', HELD, '') end
    redis.call('HSET', HELD, ALL, listed())
    are_kept, has_written = true, true
    -- Beside a lease that runs, they live long enough.
    local may_end = not is_purged or grants == 0
    if may_end and redis.call('PTTL', LOCK) < AFTER_END_MS / 2 then live_for(FOUR, 0) end
  end

  local function offer_of(token)
    for _, offer in ipairs(pool.offers) do
      if offer.token == token then return offer end
    end
  end

  -- An offer that is given back has not lapsed. Returns whether there was one.
  local function withdraw(token)
    local is_there = leave_out(token)
    if is_there then write_offers() end
    return is_there
  end

  local function has_room_for_offers() return #pool.offers < MOST_OFFERS end

  -- Makes an offer, which is not kept yet.
  local function add_offer(token, ticket)
    begin(OFFER_MS)
    local offer = {
      token = token, slots = ticket.slots, attempt = ticket.attempt, gateway = ticket.gateway, start_ms = NOW_MS,
      line = token .. ' ' .. whole(ticket.slots) .. ' ' .. ticket.attempt .. ' ' .. ticket.gateway .. ' ' .. whole(NOW_MS),
    }
    pool.offers[#pool.offers + 1], are_kept = offer, false
    return offer
  end

  -- Writes down the offers that were made. It is known who let an offer lapse until the next have been made.
  local function keep_offers(knows_lapsed)
    if not knows_lapsed and #pool.lapsed > 0 then pool.lapsed, are_kept = {}, false end
    if not are_kept then write_offers() end
  end

  -- What is left of it where another holds the lock alone, or is offered it.
  local function forget()
    if pool.taken then redis.call('DEL', HELD, ENDS, WIDE) end
    pool.taken, pool.offers, pool.lapsed, grants, are_kept = nil, {}, {}, 0, true
  end

  local function close_if_free()
    if not pool.taken or not is_free() then return end
    redis.call('DEL', LOCK)
    forget()
  end

  pool = {
    seen = seen, taken = taken, is_rest = is_rest, own = own, offers = offers, lapsed = lapsed, put = put, take = take, remove = remove,
    release = release, purge = purge, sharing = sharing, admits = admits, is_full = is_full, is_free = is_free, offer_of = offer_of,
    withdraw = withdraw, has_room_for_offers = has_room_for_offers, add_offer = add_offer, keep_offers = keep_offers, forget = forget,
    close_if_free = close_if_free,
  }
  return pool
end

-- The lock if several hold it, and else the offer of it, if that is what it is. What is left of a lock of several of which a key
-- is missing is neither.
local function pool_in(offer, token)
  if not are_several(offer) then return nil, offer end
  local pool = open_pool(token)
  if pool.taken then return pool, nil end
  return nil, not pool.is_rest and offer or nil
end
