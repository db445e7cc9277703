-- RELEASE(key, process, token, epoch, stays, delay_ms, count, note...): put the key back without a
-- back-off step.
-- Returns {lists, 1 = released (now or before), 0 = the lease was lost}.
local key, lane, lease, is_ok = ending()
if lease then
  local wait_ms = tonumber(ARGV[7])
  if ARGV[8] == '1' then
    redis.call('HSET', K.fails, key, (tonumber(redis.call('HGET', K.fails, key)) or 0) + 1)
  end
  trail_pass(key, 9, string.format('released %d', wait_ms))
  if unlease(key, lane) or wait_ms <= 0 then
    enqueue(key, lane, true)
  else
    delay(key, now + wait_ms)
  end
  free_all(key, lease)
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
