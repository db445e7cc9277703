-- THROTTLE(lane, step_ms, cooldown_ms): halve the lane's concurrency after the driver answered "too
-- much". Within the cool-down, it is not lowered again, because calls that ran together fail
-- together.
-- Touches limits:<lane> (hash). Returns the concurrency that is now in force.
local lane = ARGV[2]
local raw = redis.call('HMGET', K.limits .. lane, 'concurrency', 'cap', 'cap_at', 'cap_step',
  'cap_gain')
local declared, at = tonumber(raw[1]), tonumber(raw[3])
local current = effective(declared, tonumber(raw[2]), at, tonumber(raw[4]), tonumber(raw[5]))
if not declared or (at and now - at < tonumber(ARGV[4])) then return current or 0 end
local cap = math.max(1, math.floor(current / 2))
lower(lane, cap, tonumber(ARGV[3]), math.max(1, math.floor(declared / 50)))
return cap
