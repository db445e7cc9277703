-- FAIL(key, process, token, epoch, stays, base_ms, cap_ms, min_ms, threshold, memo, note...): count
-- a failure, and release the key with a delay. A key that became dirty meanwhile is ready at once.
-- Touches fails, memos, delayed, abandoned.
-- Returns {lists, is owner, fails, delay_ms; -1 = given up}.
local key, lane, lease, is_ok = ending()
local count = tonumber(redis.call('HGET', K.fails, key)) or 0
local wait_ms = 0
if lease then
  local base, cap, threshold = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[10])
  local is_dirty = unlease(key, lane)
  local gives_up = threshold > 0 and count >= threshold
  if gives_up then
    redis.call('ZADD', K.abandoned, now, key)
    redis.call('HSET', K.fails, key, count)
    wait_ms = -1
  else
    wait_ms = math.max(math.min(base * 2 ^ math.min(count, 60), cap), tonumber(ARGV[9]))
    count = count + 1
    redis.call('HSET', K.fails, key, count)
  end
  local memos = K.memos .. driver_part(key)
  if ARGV[11] ~= '' then
    redis.call('HSET', memos, key, ARGV[11])
    redis.call('PEXPIRE', memos, KEPT_MS)
  else
    redis.call('HDEL', memos, key)
  end
  trail_pass(key, 12, string.format('failed %d %d', count, wait_ms))
  if is_dirty then
    enqueue(key, lane, false)
    wait_ms = 0
  elseif not gives_up then
    delay(key, now + wait_ms)
  end
  free_all(key, lease)
  wake(lane)
elseif redis.call('ZSCORE', K.abandoned, key) then
  wait_ms = -1
else
  wait_ms = math.max(0, (tonumber(redis.call('ZSCORE', K.delayed, key) or now)) - now)
end
return { lists, is_ok and 1 or 0, count, wait_ms }
