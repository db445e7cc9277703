-- ENSURE(key...): make those keys ready that are nowhere in the queue. Idempotent.
-- Touches leases, ready/retry of the lanes, blocked, delayed, abandoned, since, share.
-- Returns the lists to wake.
local lanes = {}
for i = 2, #ARGV do
  local key = ARGV[i]
  local lane = lane_of(key)
  local is_held = redis.call('HEXISTS', K.leases, key) == 1 or is_waiting(key, lane)
    or redis.call('ZSCORE', K.delayed, key) or redis.call('ZSCORE', K.abandoned, key)
  if not is_held then
    push(key, lane, false)
    lanes[lane] = true
  end
end
for lane in pairs(lanes) do wake(lane) end
return lists
