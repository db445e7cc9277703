-- THROTTLE(lane, step_ms, cooldown_ms): the driver answered "too much": half of it from now on.
-- Within the cool-down nothing more is taken away: calls that ran together fail together.
-- Touches limits:<lane> (hash). Returns the concurrency that holds now.
local lane = ARGV[2]
local raw = redis.call('HMGET', K.limits .. lane, 'concurrency', 'cap', 'cap_at', 'cap_step',
  'cap_gain')
local declared, at = tonumber(raw[1]), tonumber(raw[3])
local current = effective(declared, tonumber(raw[2]), at, tonumber(raw[4]), tonumber(raw[5]))
if not declared or (at and now - at < tonumber(ARGV[4])) then return current or 0 end
local cap = math.max(1, math.floor(current / 2))
lower(lane, cap, tonumber(ARGV[3]), math.max(1, math.floor(declared / 50)))
return cap
