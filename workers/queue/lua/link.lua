-- LINK(event, driver, kinds, ...): whether any process is connected to a driver.
--   lost(process, reason)    the process has no connection; with the last one the driver's lanes
--                            are paused, until a process is back or nobody has said `lost` again
--   back(process, ttl_ms)    the process is connected, and knows the driver
-- Touches links:<driver> (zset), paused (hash), all lanes. Returns the lists to wake.
local event, driver, kinds, process = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local LOST_MS = 15000
local links = K.links .. driver
if event == 'back' then
  redis.call('ZADD', links, now + tonumber(ARGV[6]), process)
  redis.call('PEXPIRE', links, KEPT_MS)
else
  redis.call('ZREM', links, process)
  redis.call('ZREMRANGEBYSCORE', links, '-inf', now)
end
local is_lost = redis.call('ZCARD', links) == 0
for kind in string.gmatch(kinds, '%S+') do
  local lane = kind .. '|' .. driver
  if is_lost then
    redis.call('HSET', K.paused, 'driver ' .. lane,
      string.format('%d %s', now + LOST_MS, ARGV[6]))
  elseif redis.call('HDEL', K.paused, 'driver ' .. lane) == 1 then
    wake(lane)
  end
end
return lists
