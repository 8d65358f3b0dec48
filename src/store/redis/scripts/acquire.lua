-- Takes a lock or a ticket for it, or says why not.
--
-- KEYS[1..9] as in wait_queue.lua   ARGV[1..4] as in wait_queue.lua
-- KEYS[10] the token's tombstone    ARGV[5] what may be done:
-- KEYS[11] the fence                  confirm: only say that the token holds the lock · grant: take it, never wait
--                                     join: take a place, or take over the token's own · rejoin: the same, but not from an
--                                     attempt that is present · look: go on waiting · end, end-keep: look for the last
--                                     time, and give the place up, or keep it as a ticket
--                                   ARGV[6] ttl, ms
--                                   ARGV[7] owner, may be empty
--                                   ARGV[8] incarnation of the server
--                                   the rest only where there is waiting:
--                                   ARGV[9] gateway
--                                   ARGV[10] most waiters of a lock
--                                   ARGV[11] attempts that this one supersedes, with a space after each
--                                   ARGV[12] the place that is remembered, may be empty
--                                   the rest only where there are terms, in ms, each may be empty:
--                                   ARGV[13] max_hold   ARGV[14] min_hold   ARGV[15] slots, no ms
--
-- Returns { outcome, lock or '', ms left, waiters, position or 0, place or 0, ms until due, attempt offered to or '' }:
--   0 granted · 1 already held, and pinned or claimed now (these two without the rest)
--   2 refused · 5 in the wait queue · 6 another attempt is present at the place
--   3 token released, 4 attempt voided, 7 place lost, 8 queue full (these alone); after 7 an end is none
--   9 the token holds the lock beside others, by more slots than it asks for now (with its lock)
--   10 a connection of the token was granted the lock while this attempt waited (alone)
--   Where several hold the lock, it is told of the one that ends first, and behind all else stand how many hold it and the
--   smallest number that one of them has said.

local LOCK, TOKEN, ATTEMPT, MODE = KEYS[1], ARGV[1], ARGV[2], ARGV[5]

-- On a cluster a server may become a replica and a primary again while a connection stands, and then have older numbers than
-- it gave. A suspended gateway does not notice that. So this step asks the server itself.
local replication_id = string.match(ARGV[8], '^%x+/(%x+)$')
if replication_id then
  local is_same = string.find(redis.call('INFO', 'replication'), 'master_replid:' .. replication_id, 1, true)
  if not is_same then return redis.error_reply('STALE the server was a replica in the meantime') end
end

local tombstone = redis.call('GET', KEYS[10])
if is_final(tombstone) then return { 3 } end
local is_voided = tombstone and string.find(tombstone, ATTEMPT, 1, true)
local ends = MODE == 'end' or MODE == 'end-keep'
local SLOTS = tonumber(ARGV[15] or 1)
local lock, left_ms, offer = held(LOCK)

-- What the lock is for the token from now on; or nothing, and the error.
local function mint()
  local number, problem = count_numbers(KEYS[11], ARGV[8], 1)
  if not number then return nil, redis.error_reply(problem) end
  local terms = terms_of(ARGV[13], ARGV[14])
  return TOKEN .. ' ' .. ATTEMPT .. ' ' .. string.format('%.0f', number) .. terms .. ' ' .. ARGV[7]
end

-- Gives a token the slot that it is offered, where it waits alone and nothing has ended; else returns nothing, and has done
-- nothing. Most hand-offs of a slot are so. To open the pool and the queue takes longer than all else of them.
local function take_offered()
  local TICKETS, QUEUE, AWAY, DUE, HELD, ENDS, WIDE = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[7], KEYS[8], KEYS[9]
  local texts = redis.call('HMGET', HELD, ALL, TOKEN)
  local offered_to, start_ms = string.match(texts[1] or '', '^' .. TOKEN .. ' %d+ (%S+) %S+ (%d+)\n$')
  if offered_to ~= ATTEMPT or texts[2] then return nil end
  local ticket, waiting = redis.call('HGET', TICKETS, TOKEN), redis.call('ZRANGE', QUEUE, 0, 1)
  local is_its_own = string.match(ticket or '', '^%d+ %S+ (%S+)') == ATTEMPT
  if not is_its_own or waiting[1] ~= TOKEN or waiting[2] then return nil end
  local now_ms = now_in_ms()
  local first_end_ms = tonumber(redis.call('ZRANGE', ENDS, 0, 0, 'WITHSCORES')[2])
  if not first_end_ms or first_end_ms <= now_ms or now_ms - start_ms >= OFFER_MS then return nil end
  local least = tonumber(redis.call('ZRANGE', WIDE, 0, 0, 'WITHSCORES')[2] or 0)
  local text = redis.call('GET', LOCK)
  local at = string.find(text, '.', 3, true) or #text + 1
  local slot, held_by = at - 2, redis.call('ZCARD', ENDS) - 1
  if math.max(slot, held_by + 1) > math.min(least, SLOTS) then return nil end

  -- For a server that is out of memory, as below.
  redis.call('ZREM', AWAY, '')
  local granted, problem = mint()
  if not granted then return problem end
  -- In the order of pool.lua.
  redis.call('SET', LOCK, string.sub(text, 1, at - 1) .. '#' .. string.sub(text, at + 1), 'KEEPTTL')
  redis.call('ZADD', WIDE, SLOTS, TOKEN)
  local grant, ttl_ms = { field = TOKEN, slot = slot, slots = SLOTS }, tonumber(ARGV[6])
  write_grant({ LOCK, HELD, ENDS, WIDE }, grant, granted, now_ms, ttl_ms, ALL, '')
  redis.call('ZREM', QUEUE, TOKEN)
  redis.call('ZREM', AWAY, TOKEN)
  redis.call('HDEL', TICKETS, TOKEN)
  redis.call('ZREM', DUE, LOCK)
  return { 0, told(grant), ttl_ms }
end

if MODE == 'look' and are_several(offer) and not tombstone then
  local answer = take_offered()
  if answer then return answer end
end
local pool
pool, offer = pool_in(offer, TOKEN)
local own = pool and pool.own
if own then lock, left_ms = own.lock, own.left_ms end
local is_own = lock and token_of(lock) == TOKEN
local claims = is_own and is_of_connection(ATTEMPT)
-- An attempt that has claimed the lock is voided: a copy that comes late must not claim it anew.
local has_claimed = claims and attempt_of(lock) == once_told(ATTEMPT)
if is_voided and not has_claimed and (claims or not ends) then return { 4 } end
local superseded = ARGV[11] or ''
if superseded ~= '' then tombstone = void(KEYS[10], tombstone, superseded, ARGV[3]) end

if is_own then
  local by = attempt_of(lock)
  local function tell(outcome, held_by, ms) return { outcome, own and told(own) or held_by, ms } end
  -- The same attempt is a copy of the same command: the same grant, which may still have to be rolled back.
  if by == ATTEMPT and MODE ~= 'confirm' then return tell(0, lock, left_ms) end
  -- An end that was answered before may come late. Only a fresh attempt may pin what the token was granted since.
  if is_voided and not claims then return { 7 } end
  -- A grant of an attempt that this one stands for now belongs to this one.
  if string.find(superseded, by, 1, true) then
    lock = with_attempt(lock, ATTEMPT)
    if own then pool.put(own, lock, left_ms) else redis.call('SET', LOCK, lock, 'KEEPTTL') end
    return tell(0, lock, left_ms)
  end
  -- Of two requests of a token, the younger one's connection keeps the lock: the older one may be a client's that has gone.
  -- What this attempt supersedes was asked a while ago.
  local has_waited = MODE == 'look' or ends or MODE == 'rejoin' or superseded ~= ''
  local is_taken_over = has_waited and is_of_connection(by) and by ~= once_told(ATTEMPT)
  for attempt in string.gmatch(superseded, '%S+') do is_taken_over = is_taken_over and by ~= once_told(attempt) end
  if is_taken_over then return { 10 } end
  -- A token that is told that it holds the lock must be able to rely on what it asked for.
  if own and own.slots > SLOTS then return tell(9, lock, left_ms) end
  if claims then void(KEYS[10], tombstone, ATTEMPT, ARGV[3]) end
  -- A claim leaves the lease as it is, so that a copy of the claim is not taken for an earlier answer. The connection
  -- renews.
  local ttl_ms = claims and left_ms or renewed_ms(lock, left_ms, tonumber(ARGV[6]))
  if own then
    pool.put(own, with_attempt(lock, once_told(ATTEMPT)), ttl_ms)
    return tell(1, lock, ttl_ms)
  end
  return { 1, hold_by(LOCK, lock, once_told(ATTEMPT), left_ms, ttl_ms), ttl_ms }
end

local function mint_and_set()
  local problem
  lock, problem = mint()
  if not lock then return problem end
  local ttl_ms = tonumber(ARGV[6])
  if SLOTS > 1 then
    pool = pool or open_pool()
    return { 0, told(pool.take(TOKEN, SLOTS, lock, ttl_ms)), ttl_ms }
  end
  redis.call('SET', LOCK, lock, 'PX', ARGV[6])
  if pool then pool.forget() end
  pool = nil
  return { 0, lock, ttl_ms }
end

local joins = MODE == 'join' or MODE == 'rejoin'
local queue = redis.call('EXISTS', KEYS[2]) == 1 and open_queue(pool)
-- All tickets in it may have ended.
local has_queue = queue and (not queue.HAS_PURGED or redis.call('EXISTS', KEYS[2]) == 1)
-- Most locks, most of the time.
if pool and not has_queue and (MODE == 'grant' or joins) then
  pool.purge()
  if pool.admits(SLOTS) then return mint_and_set() end
end

local held_by, least_slots
-- The grant that is told of where several hold the lock.
local function look_at_pool()
  if not pool then return end
  held_by, least_slots = pool.sharing()
  local first = pool.seen.first(1)[1]
  lock, left_ms = first and told(first) or held_by > 0 and NO_LOCK, first and first.left_ms
end
if not has_queue or MODE == 'confirm' then look_at_pool() end

-- A token that may only confirm has nothing to confirm once it has released the lock.
if MODE == 'confirm' and (not lock or not pool and was_held_by(lock, TOKEN)) then return { 3 } end

if not has_queue and not offer then
  if lock and (MODE == 'grant' or MODE == 'confirm') then return { 2, lock, left_ms, 0, 0, '0', 0, '', held_by, least_slots } end
  if not lock and (MODE == 'grant' or joins) then return mint_and_set() end
  -- A poll never makes a ticket that it did not find: a late copy would make one without a client.
  if not lock and ends and not is_voided then return { 7 } end
end

queue = queue or open_queue(pool)

local function answer(outcome)
  look_at_pool()
  local waiters = redis.call('ZCARD', KEYS[3])
  local rank = redis.call('ZRANK', KEYS[3], TOKEN)
  local place = rank and redis.call('ZSCORE', KEYS[3], TOKEN) or '0'
  local offered = offer or pool and (pool.offer_of(TOKEN) or pool.offers[1])
  local due_in_ms = offered and offered.start_ms + OFFER_MS - queue.NOW_MS or left_ms or 0
  local offered_to = offered and offered.attempt or ''
  return { outcome, lock or '', left_ms or 0, waiters, rank and rank + 1 or 0, place, due_in_ms, offered_to, held_by, least_slots }
end

local lapsed

local function grant()
  local granted = mint_and_set()
  if not granted.err then queue.go_on_after_grant(pool, lapsed, tonumber(ARGV[6])) end
  return granted
end

if MODE == 'confirm' then return answer(2) end

if pool then pool.purge() end
lapsed = offer and queue.NOW_MS - offer.start_ms >= OFFER_MS and offer or nil
if lapsed then offer = nil end
-- Whether somebody may be offered it, or a slot of it.
local has_room = pool or not lock and not offer
local is_mine_next = offer and offer.token == TOKEN
if pool and pool.offer_of(TOKEN) then is_mine_next = pool.admits(SLOTS, TOKEN) end

local function hand_off(caller, taker)
  local is_taken, is_line_over
  offer, is_taken, is_line_over, pool = queue.hand_off(pool, lapsed, caller, taker, SLOTS)
  if not is_taken then lapsed = nil end
  lock, left_ms = nil, nil
  return is_taken, is_line_over
end

if MODE == 'grant' then
  local function grant_at_once()
    local ticket = queue.ticket_of(TOKEN)
    -- Another request of this token waits with the ticket: it is told that its token holds the lock.
    if ticket and ticket.attempt ~= ATTEMPT then queue.tell_to_look(ticket) end
    return grant()
  end
  if is_mine_next then return grant_at_once() end
  if has_room then
    -- A ticket of this token may be the first of the wait queue.
    local is_taken, is_line_over = hand_off(nil, TOKEN)
    if is_taken or is_line_over and not offer and (not pool or pool.admits(SLOTS)) then return grant_at_once() end
  end
  return answer(2)
end

local ticket = queue.ticket_of(TOKEN)
-- From here on this attempt stands for the others: at the ticket, and where the ticket may later go back to.
if ticket and superseded ~= '' then queue.rename(TOKEN, ticket, superseded, { gateway = ARGV[9], attempt = ATTEMPT }) end
local has_ticket = ticket and ticket.attempt == ATTEMPT and not is_voided
local is_in_queue = ticket and redis.call('ZSCORE', KEYS[3], TOKEN)
-- Whether another attempt of this token is believed to wait with its ticket.
local is_taken_over = ticket and not has_ticket and ticket.gateway ~= queue.NOBODY and is_in_queue

if joins and (MODE == 'join' or not is_taken_over) then
  local function is_full() return has_queue and redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[10]) end
  if not ticket and ARGV[12] == '' and is_full() then
    if has_room then
      hand_off()
      has_room = pool or not offer
    end
    if is_full() then queue.sweep() end
    if is_full() then return { 8 } end
  end
  local former = has_ticket and ticket.former or nil
  if is_taken_over then former = { gateway = ticket.gateway, attempt = ticket.attempt, slots = ticket.slots } end
  if ticket and not has_ticket then queue.tell_to_look(ticket) end
  local place = queue.place_for(ticket, tonumber(ARGV[12]))
  ticket = { place = place, gateway = ARGV[9], attempt = ATTEMPT, former = former, slots = SLOTS }
  queue.write_ticket(TOKEN, ticket)
  -- What is left of a wait queue whose tickets were lost is none.
  if not has_queue then
    if redis.call('DEL', KEYS[3]) == 1 then queue.tell_of_loss() end
    redis.call('DEL', KEYS[4])
  end
  has_queue, has_ticket, is_taken_over = true, true, false
end

-- For a server that is out of memory, as in `stand_in_queue`: a poll ends, and hands the lock on, also where another has its ticket.
if queue and (MODE == 'look' or ends or has_ticket and is_mine_next) then redis.call('ZREM', KEYS[4], '') end
if has_ticket then
  if is_mine_next then return grant() end
  queue.stand_in_queue(TOKEN, ticket.place)
  -- It may bear fewer now than when it was offered a slot. Then its place stays.
  if pool and pool.offer_of(TOKEN) then pool.withdraw(TOKEN) end
end
if has_room and has_queue then
  local present = has_ticket and TOKEN or nil
  if hand_off(present, present) then return grant() end
end

if ends then
  if has_ticket and ticket.former then
    queue.give_back(TOKEN, ticket)
  elseif has_ticket and MODE == 'end-keep' then
    queue.leave_place(TOKEN, ticket)
  elseif has_ticket then
    queue.remove_place(TOKEN)
  elseif ticket then
    queue.forget_former(TOKEN, ticket, ATTEMPT)
  end
  -- Of a lock that several hold, it may have kept others waiting for whom there is room.
  local makes_room = pool and ticket and has_ticket and (pool.withdraw(TOKEN) or pool.sharing() > 0)
  if offer and offer.attempt == ATTEMPT or makes_room then hand_off() end
  -- This is always done: a copy of an earlier command of this attempt may still be on its way.
  void(KEYS[10], tombstone, ATTEMPT, ARGV[3])
  return answer(2)
end
-- The offer may just have lapsed, and the attempt that took the ticket over may have stepped aside.
if is_taken_over then is_taken_over = redis.call('ZSCORE', KEYS[3], TOKEN) end
if not has_ticket and not is_taken_over then return { 7 } end
if not pool and (lock or offer) then queue.set_due(lock and queue.NOW_MS + left_ms or offer.start_ms) end
return answer(has_ticket and 5 or 6)
