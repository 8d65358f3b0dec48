-- The wait queue of a lock; it is put behind lock.lua in every script that makes a lock free or takes it.
--
-- KEYS[1] the lock    KEYS[2] seats   KEYS[3] line                ARGV[1] token hash   ARGV[3] life of a tombstone, ms
-- KEYS[4] away        KEYS[5] due     KEYS[6] gates               ARGV[2] attempt      ARGV[4] life of a ticket, ms
-- KEYS[7..9] as in pool.lua
--
-- seats: token hash -> `<ticket> <gateway> <attempt>[ <gateway> <attempt>][ *<slots>[ *<slots>]]`. From the second pair the first took
--        the ticket over. A ticket without a client has dashes. `slots` is there if it is more than one; that of the second pair
--        stands behind it if it is another. If this key is missing, there is no wait queue.
-- line:  token hash -> ticket, for those believed present, also where they have an offer; the smallest is served first
-- away:  token hash -> ms at which the ticket of an absent client ends
-- due:   lock -> ms at which a gateway must poll: the end of the lease, or the start of the offer
-- gates: gateway -> ms of its last heartbeat; its name behind the name of this key is its channel
--
-- What is published is a hint and may be lost. `due` is the truth, and gateways read it with each heartbeat.
--
-- All of it stands in one function, which is called only if there is a wait queue: making so many functions takes as long as
-- taking a lock.

-- It goes by the clock of the pool, if that is open.
local function open_queue(pool)
  local LOCK, TICKETS, QUEUE, AWAY, DUE, PRESENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local TOKEN, ATTEMPT = ARGV[1], ARGV[2]
  local TICKET_MS = tonumber(ARGV[4])
  local time = not pool and redis.call('TIME')
  local NOW_US = pool and pool.seen.NOW_US or time[1] * 1000000 + time[2]
  local NOW_MS = math.floor(NOW_US / 1000)
  -- Longer than the longest wait with the life of a ticket behind it.
  local QUEUE_LIFE_MS = tonumber(ARGV[3]) + TICKET_MS

  -- A gateway that was not heard of for this long is believed dead. It beats every 600 ms.
  local HEARD_WITHIN_MS = 1500
  -- So often somebody looks whether those behind the first fit, if it has to wait.
  local LOOK_EACH_MS = 1000
  -- At most as many are read, or removed, by one command.
  local MOST_AT_ONCE = 200
  local NOBODY = '-'

  -- Each key has a TTL. It is lengthened and never shortened.
  local function keep(key)
    if redis.call('PTTL', key) < QUEUE_LIFE_MS then redis.call('PEXPIRE', key, QUEUE_LIFE_MS) end
  end

  local function tell(gateway, message)
    if gateway == NOBODY then return end
    -- Servers before 7.0 have no sharded channels, and permissions may forbid both: the heartbeat finds it then.
    local told = redis.pcall('SPUBLISH', PRESENCE .. ':' .. gateway, message)
    if type(told) == 'table' and told.err then redis.pcall('PUBLISH', PRESENCE .. ':' .. gateway, message) end
  end

  local function tell_to_look(ticket) tell(ticket.gateway, 'look ' .. ticket.attempt .. ' ' .. LOCK) end

  local function read_ticket(text)
    if not text then return nil end
    local place, gateway, attempt, rest = string.match(text, '^(%d+) (%S+) (%S+)(.*)$')
    local former_gateway, former_attempt = string.match(rest, '^ ([^*%s]%S*) (%S+)')
    local slots_text, formers = string.match(rest, ' %*(%d+) ?%*?(%d*)$')
    local slots = tonumber(slots_text or 1)
    local former = former_gateway and { gateway = former_gateway, attempt = former_attempt, slots = tonumber(formers or '') or slots }
    return { place = tonumber(place), gateway = gateway, attempt = attempt, former = former, slots = slots }
  end

  local function ticket_of(token) return read_ticket(redis.call('HGET', TICKETS, token)) end

  local function write_ticket(token, ticket)
    local slots, former, text = ticket.slots or 1, ticket.former, ''
    if former then text = ' ' .. former.gateway .. ' ' .. former.attempt end
    local differs = former and former.slots ~= slots
    if differs or slots > 1 then text = text .. ' *' .. whole(slots) end
    if differs then text = text .. ' *' .. whole(former.slots) end
    redis.call('HSET', TICKETS, token, whole(ticket.place) .. ' ' .. ticket.gateway .. ' ' .. ticket.attempt .. text)
    -- A join lengthens all three: a token must not stand in the line without its ticket.
    for _, key in ipairs({ TICKETS, QUEUE, AWAY }) do keep(key) end
  end

  -- Tickets were lost, and it is not known whose: the next heartbeat of each gateway says so, and it puts its waiters back.
  local function tell_of_loss()
    for _, gateway in ipairs(redis.call('ZRANGE', PRESENCE, 0, -1)) do redis.call('ZINCRBY', PRESENCE, -1, gateway) end
  end

  -- ZREM comes first for a server that is out of memory: it then allows the rest to a script that has written already.
  local function stand_in_queue(token, place)
    redis.call('ZREM', AWAY, token)
    redis.call('ZADD', QUEUE, whole(place), token)
    if redis.call('PTTL', QUEUE) >= 0 then return end
    redis.call('PEXPIRE', QUEUE, QUEUE_LIFE_MS)
    -- All tickets outside a new line are aside. One that is not stood in a line that was lost. With many aside, each new line would
    -- cost too much.
    if redis.call('ZCARD', AWAY) > MOST_AT_ONCE then return end
    local tickets, is_lost = redis.call('HGETALL', TICKETS), false
    for i = 1, #tickets, 2 do
      is_lost = tickets[i] ~= token and redis.call('ZADD', AWAY, 'NX', NOW_MS + TICKET_MS, tickets[i]) == 1 or is_lost
    end
    if is_lost then
      keep(AWAY)
      tell_of_loss()
    end
  end

  -- The ticket of a token whose client is away: kept for the life of a ticket, in the wait queue or aside.
  local function leave_place(token, ticket)
    write_ticket(token, { place = ticket.place, gateway = NOBODY, attempt = NOBODY, slots = ticket.slots })
    redis.call('ZADD', AWAY, NOW_MS + TICKET_MS, token)
    keep(AWAY)
  end

  local function remove_place(token)
    redis.call('ZREM', QUEUE, token)
    redis.call('ZREM', AWAY, token)
    redis.call('HDEL', TICKETS, token)
  end

  -- The ticket of a token: the earlier of its own and the one that the gateway remembers; else one behind all others.
  local function place_for(ticket, remembered)
    local place = ticket and ticket.place
    if remembered then return math.min(place or remembered, remembered) end
    if place then return place end
    -- The clock may have been set back: tickets stay in order all the same.
    local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    return math.max(NOW_US, tonumber(last or 0) + 1)
  end

  local function set_due(at_ms)
    redis.call('ZADD', DUE, whole(at_ms), LOCK)
    keep(DUE)
  end

  -- The tickets from one rank of the wait queue to another, but for some tokens': tokens, tickets, whether their gateways were
  -- heard of since a time, and how many tickets there are with those that are left out.
  local function read_queue(first, last, since_ms, is_left_out)
    local all, tokens = redis.call('ZRANGE', QUEUE, first, last), {}
    for _, token in ipairs(all) do
      if not is_left_out[token] then tokens[#tokens + 1] = token end
    end
    if #tokens == 0 then return tokens, {}, {}, #all end
    local tickets, gateways, is_heard = redis.call('HMGET', TICKETS, unpack(tokens)), {}, {}
    for i = 1, #tokens do
      -- A ticket that was lost is of no gateway that could be heard: the token steps aside.
      tickets[i] = read_ticket(tickets[i]) or { gateway = 'none', attempt = NOBODY, slots = 1 }
      gateways[i] = tickets[i].gateway
    end
    for i, heartbeat in ipairs(redis.call('ZMSCORE', PRESENCE, unpack(gateways))) do
      local heartbeat_ms = tonumber(heartbeat or nil)
      is_heard[i] = heartbeat_ms and heartbeat_ms >= since_ms and heartbeat_ms <= NOW_MS + HEARD_WITHIN_MS
    end
    return tokens, tickets, is_heard, #all
  end

  -- Makes tokens step aside: they keep their tickets for a while. Their gateways learn of it by their next heartbeats, since
  -- `gates` no longer holds the answers to their last ones. A gateway whose client is there puts the ticket back.
  local function step_aside(tokens, tickets, is_heard)
    if #tokens == 0 then return end
    local scored, is_lost = {}, false
    for i, token in ipairs(tokens) do
      scored[#scored + 1] = NOW_MS + TICKET_MS
      scored[#scored + 1] = token
      if tickets[i].gateway == 'none' then
        is_lost = true
      elseif tickets[i].gateway ~= NOBODY then
        if is_heard[i] then
          redis.call('ZINCRBY', PRESENCE, -1, tickets[i].gateway)
          tell_to_look(tickets[i])
        else
          redis.call('ZREM', PRESENCE, tickets[i].gateway)
        end
      end
    end
    redis.call('ZREM', QUEUE, unpack(tokens))
    redis.call('ZADD', AWAY, 'NX', unpack(scored))
    keep(AWAY)
    if is_lost then tell_of_loss() end
  end

  -- Makes the dead tickets of some part of the wait queue step aside. A queue full of dead tickets would refuse living
  -- clients.
  local function sweep()
    local from = NOW_US % redis.call('ZCARD', QUEUE)
    local tokens, tickets, is_heard = read_queue(from, from + MOST_AT_ONCE - 1, NOW_MS - HEARD_WITHIN_MS, {})
    local aside, their_tickets = {}, {}
    for i, token in ipairs(tokens) do
      if tickets[i].gateway ~= NOBODY and not is_heard[i] then
        aside[#aside + 1], their_tickets[#aside + 1] = token, tickets[i]
      end
    end
    step_aside(aside, their_tickets, {})
  end

  -- Removes tickets whose time away is over; whether there were any.
  local function purge()
    local lost = redis.call('ZRANGEBYSCORE', AWAY, '-inf', NOW_MS, 'LIMIT', 0, MOST_AT_ONCE)
    if #lost == 0 then return false end
    redis.call('HDEL', TICKETS, unpack(lost))
    redis.call('ZREM', QUEUE, unpack(lost))
    redis.call('ZREM', AWAY, unpack(lost))
    return true
  end

  -- Makes the waiters poll when a lease is over of which so much is left, or `most_ms` from now. `following` is the first of them,
  -- which is told of an end that comes soon, unless it `knows` already.
  local function await(following, left_ms, most_ms, knows)
    if not following or not left_ms then
      redis.call('ZREM', DUE, LOCK)
      return
    end
    set_due(NOW_MS + math.min(left_ms, most_ms or left_ms))
    -- The next heartbeats may come too late.
    local ticket = left_ms < SHORT_LEASE_MS and not knows and ticket_of(following)
    if ticket then tell(ticket.gateway, 'due ' .. whole(left_ms) .. ' ' .. LOCK) end
  end

  -- Makes them poll when the time of the lock is over.
  local function await_end(left_ms) await(redis.call('ZRANGE', QUEUE, 0, 0)[1], left_ms) end

  -- Makes them poll once that may change which offers there can be.
  local function await_room(pool, knows)
    if #pool.offers > 0 then return set_due(NOW_MS) end
    local tokens = redis.call('ZRANGE', QUEUE, 0, 1)
    local first = tokens[1] and pool.seen.first(1)[1]
    -- If the gateway of the first dies, those behind it may fit: so one looks each second.
    await(tokens[1], first and first.left_ms, tokens[2] and LOOK_EACH_MS, knows)
  end

  -- Offers the lock to the first ticket that is present: alone, if it has no holder, or a slot of it for as long as there is room
  -- for the next. Tickets that are passed over step aside. No ticket is looked for behind one for which there is no room: else
  -- those that need little keep it waiting for ever.
  --
  -- `lapsed` is the offer that lapsed, if that is why the lock is free. The tickets that let offers lapse step aside, together
  -- with all that were not heard of since the offer was made, and all left tickets. So each absence does not cost an offer of
  -- its own. `caller` is the token whose command this is, and certainly present. `taker` is to be granted the lock right away
  -- when it is its turn, with so many slots.
  --
  -- Returns the offer of the lock alone, if it was made; whether it is the taker's turn; whether no ticket waits any more; those who
  -- hold it, if there are several.
  local function hand_off(pool, lapsed, caller, taker, taker_slots)
    local since_ms, late, has_offer = NOW_MS - HEARD_WITHIN_MS, {}, {}
    local has_lapsed = false
    for _, offer in ipairs(lapsed and { lapsed } or pool and pool.lapsed or {}) do
      since_ms, late[offer.token], has_lapsed = math.max(since_ms, offer.start_ms), true, true
    end
    for _, offer in ipairs(pool and pool.offers or {}) do has_offer[offer.token] = true end
    local alone, is_taken
    -- Where there is room for none, only those who let offers lapse have to step aside.
    local is_over, is_last = pool and not has_lapsed and pool.is_full(), false
    -- Mostly the next one is it. So few are read at first, and then more at a time.
    local from, count, next_count = 0, 1 + (pool and #pool.offers or 0), 2
    while not is_over and not is_last do
      -- Those who have an offer are served already.
      local tokens, tickets, is_heard, read = read_queue(from, from + count - 1, since_ms, has_offer)
      local aside, their_tickets, are_heard = {}, {}, {}
      for i, token in ipairs(tokens) do
        local ticket = tickets[i]
        local is_present = is_heard[i] and not late[token]
        if ticket.gateway == NOBODY then is_present = not has_lapsed end
        local slots = token == taker and taker_slots or ticket.slots
        if not is_present and token ~= caller then
          local n = #aside + 1
          aside[n], their_tickets[n], are_heard[n] = token, ticket, is_heard[i]
        elseif pool and not pool.admits(slots) then
          -- A left ticket ends, also where `away` was lost.
          if ticket.gateway == NOBODY and redis.call('ZADD', AWAY, 'NX', NOW_MS + TICKET_MS, token) == 1 then keep(AWAY) end
          is_over = true
        elseif token == taker then
          is_taken, is_over = true, true
        elseif slots > 1 and pool and not pool.has_room_for_offers() then
          is_over = true
        elseif slots == 1 then
          alone = { token = token, attempt = ticket.attempt, gateway = ticket.gateway, start_ms = NOW_MS }
          is_over = true
        else
          pool = pool or open_pool()
          local offer = pool.add_offer(token, ticket)
          has_offer[token] = true
          tell(offer.gateway, 'offered ' .. token .. ' ' .. offer.attempt .. ' ' .. LOCK)
          is_over = not has_lapsed and pool.is_full()
        end
        if is_over then break end
      end
      step_aside(aside, their_tickets, are_heard)
      is_last = read < count
      from, count, next_count = from + read - #aside, next_count, math.min(4 * next_count, MOST_AT_ONCE)
    end
    if pool then pool.keep_offers(is_taken) end
    if is_taken then return nil, true, false, pool end
    if alone then
      local value = '?' .. alone.token .. ' ' .. alone.attempt .. ' ' .. alone.gateway .. ' ' .. whole(NOW_MS)
      -- An offer that is not taken lapses. Its key lives on, to say which ticket let it lapse: for as long again as a gateway polls, or
      -- as a left ticket lives. PEXPIRE is for a server that is out of memory, as in lock.lua.
      local life_ms = OFFER_MS + (alone.gateway == NOBODY and math.max(TICKET_MS, OFFER_MS) or OFFER_MS)
      redis.call('PEXPIRE', LOCK, life_ms)
      redis.call('SET', LOCK, value, 'PX', life_ms)
      if pool then pool.forget() end
      set_due(NOW_MS)
      tell(alone.gateway, 'offered ' .. alone.token .. ' ' .. alone.attempt .. ' ' .. LOCK)
    elseif pool and not pool.is_free() then
      -- A request that only looks ends no lease, and makes none.
      await_room(pool, caller or taker)
    else
      redis.call('DEL', LOCK)
      if pool then pool.forget() end
      redis.call('ZREM', DUE, LOCK)
    end
    return alone, false, not is_over, pool and pool.taken and pool or nil
  end

  -- Lets one attempt stand for others, separated by spaces, wherever a ticket names them.
  local function rename(token, ticket, attempts, to)
    local is_old = function(attempt) return string.find(attempts, attempt, 1, true) end
    if is_old(ticket.attempt) then ticket.gateway, ticket.attempt = to.gateway, to.attempt end
    local former = ticket.former
    if former and is_old(former.attempt) then former.gateway, former.attempt = to.gateway, to.attempt end
    write_ticket(token, ticket)
  end

  -- From now on no ticket goes back to an attempt that has ended.
  local function forget_former(token, ticket, attempt)
    if not ticket.former or ticket.former.attempt ~= attempt then return end
    ticket.former = nil
    write_ticket(token, ticket)
  end

  -- Gives a ticket back to the attempt that it was taken from.
  local function give_back(token, ticket)
    local former = ticket.former
    write_ticket(token, { place = ticket.place, gateway = former.gateway, attempt = former.attempt, slots = former.slots })
    stand_in_queue(token, ticket.place)
    tell_to_look(former)
  end

  -- Takes the token that was granted the lock out of the wait queue. Where several hold it, there may be room for more.
  local function go_on_after_grant(pool, lapsed, ttl_ms)
    remove_place(TOKEN)
    if pool then hand_off(pool, lapsed) else await_end(ttl_ms) end
  end

  -- Takes an attempt that has ended out of the wait queue. Its ticket goes back to the attempt that it was taken from, or is
  -- kept for a while, or is removed. One without an attempt is kept anew. Returns whether the ticket was its own.
  --
  -- If it was granted the lock, and that was rolled back, it has no ticket any more. Then `granted_at` is its ticket.
  local function vacate(token, attempt, keeps_place, granted_at, slots)
    local ticket = ticket_of(token)
    if not ticket and granted_at then leave_place(token, { place = granted_at, slots = slots }) end
    if not ticket then return false end
    if ticket.attempt ~= attempt then
      forget_former(token, ticket, attempt)
      if ticket.attempt == NOBODY and keeps_place then leave_place(token, ticket) end
      return false
    end
    if ticket.former then
      give_back(token, ticket)
    elseif keeps_place then
      redis.call('ZREM', QUEUE, token)
      leave_place(token, ticket)
    else
      remove_place(token)
    end
    return true
  end

  -- A ticket that has ended gets nothing.
  local HAS_PURGED = purge()
  return {
    HAS_PURGED = HAS_PURGED,
    NOBODY = NOBODY,
    NOW_MS = NOW_MS,
    tell_to_look = tell_to_look,
    tell_of_loss = tell_of_loss,
    ticket_of = ticket_of,
    write_ticket = write_ticket,
    stand_in_queue = stand_in_queue,
    leave_place = leave_place,
    remove_place = remove_place,
    set_due = set_due,
    place_for = place_for,
    sweep = sweep,
    await_end = await_end,
    go_on_after_grant = go_on_after_grant,
    hand_off = hand_off,
    give_back = give_back,
    rename = rename,
    forget_former = forget_former,
    vacate = vacate,
    ticket_kept_ms = function(token) return ticket_of(token) and TICKET_MS end,
  }
end
