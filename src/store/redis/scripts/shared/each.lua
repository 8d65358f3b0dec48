-- What is asked of several records by one call; it is put in front of the scripts that know how.

-- Asks for each record as if it were asked for alone: one alone is replied its reply, several an array of these. What ends one
-- of several in an error ends none of the others: it is replied { -1 }, is asked for again alone, and told the error.
local function each(count, ask)
  if count == 1 then return ask(1) end
  local replies = {}
  for i = 1, count do
    local is_done, reply = pcall(ask, i)
    local is_answer = is_done and (type(reply) == 'number' or not reply.err)
    replies[i] = is_answer and reply or { -1 }
  end
  return replies
end
