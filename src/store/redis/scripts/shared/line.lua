-- The line of a lock; it is put behind lock.lua in every script that makes a lock free or takes it.
--
-- KEYS[1] the lock    KEYS[2] seats   KEYS[3] line                ARGV[1] token hash   ARGV[3] life of a mark, ms
-- KEYS[4] away        KEYS[5] due     KEYS[6] gates               ARGV[2] attempt      ARGV[4] life of a ticket, ms
--
-- seats: token hash -> `<place> <gateway> <attempt>[ <gateway> <attempt>]`, the second pair being that from which the
--        first took the place over. A place without a client has dashes. Nobody waits where this key is missing.
-- line:  token hash -> place, for those believed present; the smallest is served first
-- away:  token hash -> ms at which the place of one who is away is lost
-- due:   lock -> ms at which somebody must look: the end of the lease, or the start of the offer
-- gates: gateway -> ms of its last heartbeat; its name behind the name of this key is its channel
--
-- What is published is a hint and may be lost. `due` is the truth, and gateways read it with each heartbeat.
--
-- All of it stands in one function, which only those call who meet a line: to make so many functions takes as long as
-- taking a lock.

local function open_line()
  local LOCK, SEATS, LINE, AWAY, DUE, GATES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
  local TOKEN, ATTEMPT = ARGV[1], ARGV[2]
  local TICKET_MS = tonumber(ARGV[4])
  -- Longer than the longest wait with the life of a ticket behind it.
  local LINE_LIFE_MS = tonumber(ARGV[3]) + TICKET_MS

  -- A gateway that was not heard of for this long is believed dead. It beats every 600 ms.
  local HEARD_WITHIN_MS = 1500
  -- At most as many are read, or removed, by one command.
  local MOST_AT_ONCE = 200
  local NOBODY = '-'

  local function clock()
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    return math.floor(now_us / 1000), now_us
  end

  -- Every key of a line has a TTL. It is lengthened and never shortened.
  local function keep(key)
    if redis.call('PTTL', key) < LINE_LIFE_MS then redis.call('PEXPIRE', key, LINE_LIFE_MS) end
  end

  local function whole(number) return string.format('%.0f', number) end

  local function tell(gateway, message)
    if gateway == NOBODY then return end
    -- Servers before 7.0 have no sharded channels, and permissions may forbid both: the heartbeat finds it then.
    local told = redis.pcall('SPUBLISH', GATES .. ':' .. gateway, message)
    if type(told) == 'table' and told.err then redis.pcall('PUBLISH', GATES .. ':' .. gateway, message) end
  end

  local function tell_to_look(seat) tell(seat.gateway, 'look ' .. seat.attempt .. ' ' .. LOCK) end

  local function read_seat(text)
    if not text then return nil end
    local place, gateway, attempt, rest = string.match(text, '^(%d+) (%S+) (%S+)(.*)$')
    local former_gateway, former_attempt = string.match(rest, '^ (%S+) (%S+)$')
    local former = former_gateway and { gateway = former_gateway, attempt = former_attempt }
    return { place = tonumber(place), gateway = gateway, attempt = attempt, former = former }
  end

  local function seat_of(token) return read_seat(redis.call('HGET', SEATS, token)) end

  local function write_seat(token, seat)
    local former = seat.former and ' ' .. seat.former.gateway .. ' ' .. seat.former.attempt or ''
    redis.call('HSET', SEATS, token, whole(seat.place) .. ' ' .. seat.gateway .. ' ' .. seat.attempt .. former)
    keep(SEATS)
  end

  -- ZREM comes first for a server that is out of memory: it then allows the rest to a script that has written already.
  local function stand_in_line(token, place)
    redis.call('ZREM', AWAY, token)
    redis.call('ZADD', LINE, whole(place), token)
    keep(LINE)
  end

  -- The place of a token that nobody answers for any more: kept for the life of a ticket, in the line or aside.
  local function leave_place(token, seat, now_ms)
    write_seat(token, { place = seat.place, gateway = NOBODY, attempt = NOBODY })
    redis.call('ZADD', AWAY, now_ms + TICKET_MS, token)
    keep(AWAY)
  end

  local function remove_place(token)
    redis.call('ZREM', LINE, token)
    redis.call('ZREM', AWAY, token)
    redis.call('HDEL', SEATS, token)
  end

  -- The place of a token: its own, or the one that is remembered, whichever is earlier; else one behind all others.
  local function place_for(seat, remembered, now_us)
    local place = seat and seat.place
    if remembered then return math.min(place or remembered, remembered) end
    if place then return place end
    -- The clock may have been set back: places stay in order all the same.
    local last = redis.call('ZRANGE', LINE, -1, -1, 'WITHSCORES')[2]
    return math.max(now_us, tonumber(last or 0) + 1)
  end

  local function set_due(at_ms)
    redis.call('ZADD', DUE, whole(at_ms), LOCK)
    keep(DUE)
  end

  -- Those from one rank of the line to another: tokens, seats, and whether their gateways were heard of since a time.
  local function read_line(first, last, since_ms, now_ms)
    local tokens = redis.call('ZRANGE', LINE, first, last)
    if #tokens == 0 then return tokens end
    local seats, gateways, is_heard = redis.call('HMGET', SEATS, unpack(tokens)), {}, {}
    for i = 1, #tokens do
      seats[i] = read_seat(seats[i]) or { place = 0, gateway = NOBODY, attempt = NOBODY }
      gateways[i] = seats[i].gateway
    end
    for i, beat in ipairs(redis.call('ZMSCORE', GATES, unpack(gateways))) do
      local beat_ms = tonumber(beat or nil)
      is_heard[i] = beat_ms and beat_ms >= since_ms and beat_ms <= now_ms + HEARD_WITHIN_MS
    end
    return tokens, seats, is_heard
  end

  -- Has tokens step aside: they keep their places for a while. Their gateways learn of it from their next heartbeats, as
  -- `gates` no longer holds the answers to their last ones, and have them come back if they are there.
  local function step_aside(tokens, seats, is_heard, now_ms)
    if #tokens == 0 then return end
    local scored = {}
    for i, token in ipairs(tokens) do
      scored[#scored + 1] = now_ms + TICKET_MS
      scored[#scored + 1] = token
      if seats[i].gateway ~= NOBODY then
        if is_heard[i] then
          redis.call('ZINCRBY', GATES, -1, seats[i].gateway)
          tell_to_look(seats[i])
        else
          redis.call('ZREM', GATES, seats[i].gateway)
        end
      end
    end
    redis.call('ZREM', LINE, unpack(tokens))
    redis.call('ZADD', AWAY, 'NX', unpack(scored))
    keep(AWAY)
  end

  -- The first of the line who is present. All that stand before step aside.
  --
  -- `lapsed` is the offer that nobody took, if that is why the lock is free: then all who were not heard of since it
  -- was made step aside with the one that let it lapse, tickets too, so that no absence costs the line an offer of its
  -- own. `caller` is the token whose command this is, and certainly present.
  local function first_present(now_ms, lapsed, caller)
    local since_ms = now_ms - HEARD_WITHIN_MS
    if lapsed then since_ms = math.max(since_ms, lapsed.start_ms) end
    local count = 1
    while true do
      local tokens, seats, is_heard = read_line(0, count - 1, since_ms, now_ms)
      if #tokens == 0 then return nil end
      local first, aside, their_seats = nil, {}, {}
      for i, token in ipairs(tokens) do
        local is_present = is_heard[i] and not (lapsed and lapsed.token == token)
        if seats[i].gateway == NOBODY then is_present = not lapsed end
        if is_present or token == caller then
          first = i
          break
        end
        aside[i], their_seats[i] = token, seats[i]
      end
      step_aside(aside, their_seats, is_heard, now_ms)
      if first then return tokens[first], seats[first] end
      count = MOST_AT_ONCE
    end
  end

  -- Has the dead of some part of the line step aside. A line that is full of them would refuse those who live.
  local function sweep(now_ms, now_us)
    local from = now_us % redis.call('ZCARD', LINE)
    local tokens, seats, is_heard = read_line(from, from + MOST_AT_ONCE - 1, now_ms - HEARD_WITHIN_MS, now_ms)
    local aside, their_seats = {}, {}
    for i, token in ipairs(tokens) do
      if seats[i].gateway ~= NOBODY and not is_heard[i] then
        aside[#aside + 1], their_seats[#aside + 1] = token, seats[i]
      end
    end
    step_aside(aside, their_seats, {}, now_ms)
  end

  -- Removes places whose time away is over.
  local function purge(now_ms)
    local lost = redis.call('ZRANGEBYSCORE', AWAY, '-inf', now_ms, 'LIMIT', 0, MOST_AT_ONCE)
    if #lost == 0 then return end
    redis.call('HDEL', SEATS, unpack(lost))
    redis.call('ZREM', LINE, unpack(lost))
    redis.call('ZREM', AWAY, unpack(lost))
  end

  -- Hands a lock that nobody holds to the first of the line who is present. Returns the offer; or nothing and true,
  -- where that is `taker`, who is to be granted the lock right away; or nothing where nobody is present.
  local function hand_off(now_ms, lapsed, caller, taker)
    purge(now_ms)
    local token, seat = first_present(now_ms, lapsed, caller)
    if not token then
      redis.call('DEL', LOCK)
      redis.call('ZREM', DUE, LOCK)
      return nil
    end
    if token == taker then return nil, true end
    local offer = { token = token, attempt = seat.attempt, gateway = seat.gateway, start_ms = now_ms }
    local value = '?' .. token .. ' ' .. offer.attempt .. ' ' .. offer.gateway .. ' ' .. whole(now_ms)
    -- An offer that nobody took lapses; its key lives on for as long again, to say who let it lapse. PEXPIRE is for a server
    -- that is out of memory, as in lock.lua.
    redis.call('PEXPIRE', LOCK, 2 * OFFER_MS)
    redis.call('SET', LOCK, value, 'PX', 2 * OFFER_MS)
    set_due(now_ms)
    tell(offer.gateway, 'offered ' .. token .. ' ' .. offer.attempt .. ' ' .. LOCK)
    return offer
  end

  -- Has one attempt stand for others, separated by spaces, wherever a seat names them.
  local function rename(token, seat, attempts, to)
    local is_old = function(attempt) return string.find(attempts, attempt, 1, true) end
    if is_old(seat.attempt) then seat.gateway, seat.attempt = to.gateway, to.attempt end
    if seat.former and is_old(seat.former.attempt) then seat.former = to end
    write_seat(token, seat)
  end

  -- Has a place never come back to an attempt that will be heard of no more.
  local function forget_former(token, seat, attempt)
    if not seat.former or seat.former.attempt ~= attempt then return end
    seat.former = nil
    write_seat(token, seat)
  end

  -- Gives a place back to the attempt that it was taken from.
  local function give_back(token, seat)
    local former = seat.former
    write_seat(token, { place = seat.place, gateway = former.gateway, attempt = former.attempt })
    stand_in_line(token, seat.place)
    tell_to_look(former)
  end

  -- Has those who wait look when the time of the lock is over.
  local function await_end(now_ms, left_ms)
    local following = redis.call('ZRANGE', LINE, 0, 0)[1]
    if not following then
      redis.call('ZREM', DUE, LOCK)
      return
    end
    set_due(now_ms + left_ms)
    -- The next heartbeats may come too late.
    local seat = left_ms < SHORT_LEASE_MS and seat_of(following)
    if seat then tell(seat.gateway, 'due ' .. whole(left_ms) .. ' ' .. LOCK) end
  end

  -- Takes the token that was granted the lock out of the line.
  local function go_on_after_grant(now_ms, ttl_ms)
    remove_place(TOKEN)
    await_end(now_ms, ttl_ms)
  end

  -- Takes an attempt that will be heard of no more out of the line: its place goes back to the one that it was taken
  -- from, or is kept for a while, or is removed. Whoever's place was offered the lock has it handed on.
  --
  -- Where it was granted the lock, and that was taken back, it has no seat any more: then `granted_at` is its place.
  local function vacate(token, attempt, offer, keeps_place, granted_at)
    local seat = seat_of(token)
    if not seat and granted_at then leave_place(token, { place = granted_at }, (clock())) end
    if not seat then return end
    if seat.attempt ~= attempt then return forget_former(token, seat, attempt) end
    local now_ms = clock()
    if seat.former then
      give_back(token, seat)
    elseif keeps_place then
      redis.call('ZREM', LINE, token)
      leave_place(token, seat, now_ms)
    else
      remove_place(token)
    end
    if offer and offer.token == token then hand_off(now_ms) end
  end

  return {
    NOBODY = NOBODY,
    clock = clock,
    tell_to_look = tell_to_look,
    seat_of = seat_of,
    write_seat = write_seat,
    stand_in_line = stand_in_line,
    leave_place = leave_place,
    remove_place = remove_place,
    set_due = set_due,
    place_for = place_for,
    sweep = sweep,
    await_end = await_end,
    go_on_after_grant = go_on_after_grant,
    purge = purge,
    hand_off = hand_off,
    give_back = give_back,
    rename = rename,
    forget_former = forget_former,
    vacate = vacate,
  }
end
