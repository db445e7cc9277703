-- DRIVER_REGISTER(name, record, ttl_ms): a worker serves this driver. Drops expired drivers.
-- Touches drivers (hash), drivers_until (zset), versions (hash, field drivers). Idempotent.
-- Returns 1 when the set of drivers or a record changed.
local changed = redis.call('HGET', K.drivers, ARGV[2]) ~= ARGV[3]
for _, name in ipairs(redis.call('ZRANGEBYSCORE', K.drivers_until, '-inf', now)) do
  redis.call('ZREM', K.drivers_until, name)
  if name ~= ARGV[2] then
    redis.call('HDEL', K.drivers, name)
    changed = true
  end
end
redis.call('HSET', K.drivers, ARGV[2], ARGV[3])
redis.call('ZADD', K.drivers_until, now + tonumber(ARGV[4]), ARGV[2])
if changed then
  local version = tonumber(redis.call('HGET', K.versions, 'drivers')) or now * 1000
  redis.call('HSET', K.versions, 'drivers', string.format('%d', version + 1))
end
return changed and 1 or 0
