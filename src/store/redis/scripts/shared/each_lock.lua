-- What is asked of locks by one call; it is put in front of the scripts that know how.

-- Has `ask` do what is asked for each lock together. It is told which of the locks it is, and which of all that are asked these
-- are. It returns a reply for each of them, or a number if it has done nothing. Then it is asked for each alone, and the
-- number is the reply. An error ends one of them, and none of the others: it is replied -1. `lock_of` says of each which lock
-- it is for.
local function each_lock(count, lock_of, ask)
  local replies, asked_of = {}, {}
  if count == 1 then
    local told = ask(1, { 1 })
    return type(told) == 'number' and told or told[1]
  end
  local function ask_for(lock, asked)
    local is_done, told = pcall(ask, lock, asked)
    local is_answer = is_done and type(told) ~= 'number'
    if not is_answer and #asked > 1 then
      for _, i in ipairs(asked) do ask_for(lock, { i }) end
      return
    end
    for j, i in ipairs(asked) do replies[i] = is_answer and told[j] or is_done and told or -1 end
  end
  for i = 1, count do
    local lock = tonumber(lock_of(i))
    local asked = asked_of[lock] or {}
    asked[#asked + 1], asked_of[lock] = i, asked
  end
  for lock, asked in ipairs(asked_of) do ask_for(lock, asked) end
  return replies
end
