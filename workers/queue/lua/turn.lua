-- TURN(driver, interval_ms, burst): take the next turn to write a capacity object.
-- Touches capacity_turn:<driver> (string: the ms at which the bucket would be full again, PX).
-- Returns the ms to wait for the turn. Turns are in order: each caller waits for its own turn.
local key = K.capacity_turn .. ARGV[2]
local interval, burst = tonumber(ARGV[3]), tonumber(ARGV[4])
local at = math.max(tonumber(redis.call('GET', key)) or now, now)
local full_at = at + interval
redis.call('SET', key, string.format('%.3f', full_at), 'PX', math.ceil(full_at - now))
return math.ceil(math.max(0, at - now - interval * (burst - 1)))
