-- Says what the gateway's user lacks. It runs none of the commands, and touches no key.
--
-- ARGV[1] a channel of the gateway
-- ARGV[2..3] the channels of all gateways
-- ARGV[4..5] a record, and where a result is put aside for it
-- ARGV[6] how many keys follow: one of each kind; behind them, the calls that are needed, with `*` for a key
--
-- Returns { 1 if hints can be told and heard, else 0; 1 if that goes for the channels of all gateways; 1 if the
-- configuration may be read; 1 if it may be asked what other users may do; 1 if locks may be listed;
-- commands for records; calls; keys }, the last three being what is lacking; or nothing where the server cannot say, which
-- is before 7.0.

if not redis.acl_check_cmd then return {} end

-- The call must have all its arguments: Redis 7.0.15 does not count them, and reads beyond them (it has crashed on
-- EVAL without any).
local function may(call, key)
  local words = {}
  for word in string.gmatch(call, '%S+') do words[#words + 1] = word == '*' and key or word end
  -- An error means that there is no such command.
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(words))
  return is_known and is_allowed
end

local first_key = 7
local first_call = first_key + ARGV[6]

-- With a key of some kind: a command that is allowed nowhere is what is lacking, and not the keys.
local function may_on_any(call)
  for i = first_key, first_call - 1 do
    if may(call, ARGV[i]) then return true end
  end
  return false
end

local calls, keys = {}, {}
for i = first_call, #ARGV do
  if not may_on_any(ARGV[i]) then calls[#calls + 1] = ARGV[i] end
end
local reads, writes = may_on_any('GET *'), may_on_any('DEL *')
for i = first_key, first_call - 1 do
  if reads and not may('GET *', ARGV[i]) or writes and not may('DEL *', ARGV[i]) then keys[#keys + 1] = ARGV[i] end
end

-- A user that may publish to one kind of channel must not listen to the other.
local sends, hears = may('SPUBLISH * hint', ARGV[1]), may('SSUBSCRIBE *', ARGV[1])
local is_told = sends and hears
if not sends and not hears then is_told = may('PUBLISH * hint', ARGV[1]) and may('SUBSCRIBE *', ARGV[1]) end
local has_peer_channels = true
for i = 2, 3 do
  has_peer_channels = has_peer_channels and may('PUBLISH * word', ARGV[i]) and may('SUBSCRIBE *', ARGV[i])
end
local may_read_config = may('CONFIG GET save') and may('CONFIG GET appendfsync')
local may_ask = may('ACL DRYRUN default PING')
local may_list = may('SCAN 0')
-- What else their scripts call is among what locks need.
local for_records = {}
for _, call in ipairs({ 'GETRANGE * 0 1', 'SETRANGE * 0 part', 'STRLEN *', 'SET * value', 'DEL *', 'RENAME * *' }) do
  local command = string.match(call, '%S+')
  -- What is put aside is never read in parts.
  local is_allowed = may(call, ARGV[4]) and (call == 'GETRANGE * 0 1' or may(call, ARGV[5]))
  if not is_allowed then for_records[#for_records + 1] = command end
end
local function flag(is_so) return is_so and 1 or 0 end
return { flag(is_told), flag(has_peer_channels), flag(may_read_config), flag(may_ask), flag(may_list), for_records, calls, keys }
