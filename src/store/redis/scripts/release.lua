-- Frees a lock, if the token holds it, or gives up the token's ticket. With a tombstone, the token is freed with every
-- answer. If the lock's `min_hold` is not over, it stays taken until then, without a holder.
--
-- KEYS[1..9] as in wait_queue.lua   ARGV[1], ARGV[3..4] as in wait_queue.lua
-- KEYS[10] the token's tombstone, may be absent
--
-- Returns { outcome, lock that was freed, ms for which it is kept or 0 }: 0 released, or, without the rest, left the wait queue
--   1 it had no holder, 2 held by another (these two alone)
--   0 alone also where the token has released it before, and it is kept

local leaves_tombstone = KEYS[10] ~= nil
local lock, _, offer = held(KEYS[1])
local pool
pool, offer = pool_in(offer, ARGV[1])
local own = pool and pool.own
local frees = own or lock and token_of(lock) == ARGV[1]
local queue = redis.call('EXISTS', KEYS[2]) == 1 and open_queue(pool)
-- A gateway before slots takes a slot for a free lock, and leaves a tombstone that says so.
local tombstone = leaves_tombstone and not frees and redis.call('GET', KEYS[10])
if is_final(tombstone) then
  -- One who is answered now is promised the whole life of a tombstone from now on. So a server that refuses writes says so here, too.
  redis.call('PEXPIRE', KEYS[10], ARGV[3])
  -- A script that erred may have freed the lock, and told no waiter.
  if queue and not lock then queue.set_due(queue.NOW_MS) end
  return { tonumber(tombstone) }
end

local ticket = queue and queue.ticket_of(ARGV[1])
local outcome = 0
if not frees and not ticket then
  if lock and not is_readable(lock) then return unreadable() end
  -- A token that has released the lock is told so again, also one that left no tombstone.
  outcome = lock and (was_held_by(lock, ARGV[1]) and 0 or 2) or pool and pool.sharing() > 0 and 2 or 1
end
-- It comes first: a repetition of a script that erred must not say of what that freed that it was another's.
if leaves_tombstone then set_tombstone(KEYS[10], outcome, ARGV[3]) end
local kept_ms
if own then
  lock, kept_ms = own.lock, pool.release(own)
elseif frees then
  kept_ms = keep_released(KEYS[1], lock)
  -- With a wait queue it is handed on below.
  if not queue and not kept_ms then redis.call('DEL', KEYS[1]) end
end
if ticket then
  queue.remove_place(ARGV[1])
  queue.tell_to_look(ticket)
  if ticket.former then queue.tell_to_look(ticket.former) end
end

if pool then
  -- One that leaves may have kept others waiting for whom there is room.
  if pool.withdraw(ARGV[1]) or ticket and pool.sharing() > 0 or frees then
    pool.purge()
    if queue then queue.hand_off(pool) else pool.close_if_free() end
  end
elseif queue and kept_ms then
  queue.await_end(kept_ms)
elseif queue and (frees or offer and offer.token == ARGV[1]) then
  queue.hand_off()
end
if frees then return { outcome, lock, kept_ms or 0 } end
return { outcome }
