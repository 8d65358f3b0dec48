-- Says how far pieces of work are, and never their results. Telling a token that it is the worker is a promise like a renewal,
-- so it pins the grant.
--
-- KEYS[1..] records   ARGV[1] token hash, or empty   ARGV[2] memory of a crash, ms
--
-- Returns for each as told() in record.lua, with the length of the result behind it: 0 done or lapsed · 2 a lease runs
--   { 1 } no record, or one of which nobody needs to know · { 9 } not ours

local reply = {}
for i = 1, #KEYS do
  -- A key that is not ours does not stop the list of the others.
  local is_text, record = pcall(record_of, KEYS[i])
  if not is_text or record and not record.kind then
    reply[i] = { 9 }
  elseif not record or record.token == NOBODY_HASH and record.earlier == 0 then
    reply[i] = { 1 }
  else
    if record.token == ARGV[1] and record.attempt ~= '-' then
      record.attempt = '-'
      rewrite(KEYS[i], record, tonumber(ARGV[2]))
    end
    reply[i] = told(runs(record) and 2 or 0, KEYS[i], record)
    reply[i][5] = redis.call('STRLEN', KEYS[i]) - #record.head
  end
end
return reply
