-- RELEASE(key, process, token, epoch, delay_ms, count, note...): put back without a back-off step.
-- Returns {tickets, 1 = released (or before), 0 = lease was lost}.
local key, lane = ARGV[2], lane_of(ARGV[2])
local lease, is_ok = owned(key, ARGV[3], ARGV[4], ARGV[5])
if lease then
  local wait_ms = tonumber(ARGV[6])
  if ARGV[7] == '1' then
    redis.call('HSET', K.fails, key, (tonumber(redis.call('HGET', K.fails, key)) or 0) + 1)
  end
  trail_pass(key, 8, string.format('released %d', wait_ms))
  if unlease(key, lane) or wait_ms <= 0 then
    enqueue(key, lane, true)
  else
    delay(key, now + wait_ms)
  end
  free_all(key, lease)
  admit(lane)
end
return { tickets, is_ok and 1 or 0 }
