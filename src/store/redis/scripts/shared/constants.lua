-- What scripts share with each other and with the gateway; it is put in front of each of them. A test holds it to the gateway's
-- constants, and sees to it that none of these numbers stands anywhere else.

-- A lock's value begins with token hash, attempt and fencing token, and a space behind each. Its first byte is 1.
local TOKEN_HASH_DIGITS = 64
local ATTEMPT_DIGITS = 32
local ATTEMPT_AT = 66
local NUMBER_AT = 99
-- A run begins at a time in microseconds, so every number of one is above this: September 2001.
local SMALLEST_NUMBER = 1000000000000000
local LARGEST_NUMBER = 9007199254740991
local MOST_VOIDED = 1000
local OFFER_MS = 800
local LOOK_AHEAD_MS = 1250
local SHORT_LEASE_MS = 2000
