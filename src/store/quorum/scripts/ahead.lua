-- Which numbers a server of a quorum accepts; it is put in front of member.lua and take_free.lua.

-- Never equal: two that were accepted with one number could both be counted.
local function is_passed(number, high) return number <= high end

-- A wrong clock of a gateway must not drive numbers so far ahead that others cannot reach them.
local FURTHEST_AHEAD_US = 10 * 1000000

local function is_too_far_ahead(number, high, now_us) return number > math.max(high + 1, now_us + FURTHEST_AHEAD_US) end
