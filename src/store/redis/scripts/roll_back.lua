-- Undoes an attempt that has ended: its grant and its ticket. It also voids the attempt, so that a copy that arrives later
-- does nothing. Without a tombstone the attempt is only taken out of the wait queue, and an offer to it is passed on.
--
-- KEYS[1..9] as in wait_queue.lua                ARGV[1..4] as in wait_queue.lua
-- KEYS[10] the token's tombstone, may be absent  ARGV[5] '1': the place is kept for a while, '0': it is removed
--                                                ARGV[6] the place that the attempt was granted the lock from, may be empty
--                                                ARGV[7] empty if no client was told of the grant; else a connection held it,
--                                                  and leases that its token was told of before run for so many ms more
--
-- Returns { 0 } if it was not granted the lock · { 1, ms for which the lock is kept, as after a release, or 0 }
--   { 2, ms for which it stays the token's }
-- Without a tombstone { 0, 0 }, and for how many ms a ticket of the token is kept, if there is one

local voids = KEYS[10] ~= nil
-- All is read before anything is written: a script that errs keeps what it wrote.
local lock, left_ms, offer = held(KEYS[1])
local pool
pool, offer = pool_in(offer, ARGV[1])
local own = pool and pool.own
if own then lock, left_ms = own.lock, own.left_ms end
local tombstone = voids and redis.call('GET', KEYS[10])
local queue = redis.call('EXISTS', KEYS[2]) == 1 and open_queue(pool)
local told_ms = tonumber(ARGV[7] or nil)
local outcome, kept_ms = 0, nil
if voids and lock and token_of(lock) == ARGV[1] and attempt_of(lock) == ARGV[2] then
  outcome = 1
  -- A lock that was told of is released, and not undone.
  if own and told_ms == 0 then
    kept_ms = pool.release(own)
  elseif own and told_ms then
    -- As in `give_up`.
    local _, least_ms = terms_left(lock)
    outcome, kept_ms = 2, math.max(math.min(left_ms, told_ms), least_ms or 0)
    pool.put(own, with_attempt(lock, PINNED), kept_ms)
  elseif own then
    pool.remove(own)
  elseif told_ms then
    outcome, kept_ms = give_up(KEYS[1], lock, left_ms, told_ms)
  end
  -- With a wait queue it is handed on below.
  if not own and not queue and not kept_ms then redis.call('DEL', KEYS[1]) end
end
if voids then void(KEYS[10], tombstone, ARGV[2], ARGV[3]) end
-- It is voided for so long where the token was released, too.
if is_final(tombstone) then redis.call('PEXPIRE', KEYS[10], ARGV[3]) end
local has_left = false
if queue then
  -- For a server that is out of memory, as in `stand_in_queue`.
  redis.call('ZREM', KEYS[4], '')
  local granted_at = outcome == 1 and ARGV[5] == '1' and tonumber(ARGV[6]) or nil
  has_left = queue.vacate(ARGV[1], ARGV[2], ARGV[5] == '1', granted_at, own and own.slots)
end
if pool then
  -- One that leaves may have kept others waiting for whom there is room.
  if has_left and (pool.withdraw(ARGV[1]) or pool.sharing() > 0) or outcome > 0 then
    pool.purge()
    if queue then queue.hand_off(pool) else pool.close_if_free() end
  end
elseif queue and kept_ms then
  queue.await_end(kept_ms)
elseif queue and (outcome == 1 or has_left and offer and offer.token == ARGV[1]) then
  queue.hand_off()
end
return { outcome, kept_ms or 0, not voids and queue and queue.ticket_kept_ms(ARGV[1]) or nil }
