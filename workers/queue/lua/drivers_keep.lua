-- DRIVERS_KEEP(process, ttl_ms, name, record, connected, ...): the process serves these drivers.
-- Touches drivers (hash), drivers_until (zset), links:<driver> (zset), versions (hash, field
-- drivers), breakers (hash). Idempotent.
-- Returns {1 when the set of drivers or a record changed, connected drivers that count as lost}.
local process, ttl = ARGV[2], tonumber(ARGV[3])
local changed, lost = false, {}
local are_well = redis.call('EXISTS', K.breakers) == 0
for i = 4, #ARGV, 3 do
  local name, record = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', K.drivers, name) ~= record then
    redis.call('HSET', K.drivers, name, record)
    changed = true
  end
  redis.call('ZADD', K.drivers_until, now + ttl, name)
  if ARGV[i + 2] == '1' then
    local driver = string.match(name, '^[^#]*') -- without the controllers, see registry.py
    redis.call('ZADD', K.links .. driver, now + ttl, process)
    redis.call('PEXPIRE', K.links .. driver, KEPT_MS)
    local record = not are_well and redis.call('HGET', K.breakers, driver)
    if record and string.match(record, '^lost ') then lost[#lost + 1] = driver end
  end
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', K.drivers_until, '-inf', now)) do
  redis.call('ZREM', K.drivers_until, name)
  redis.call('HDEL', K.drivers, name)
  changed = true
end
if changed then
  local version = tonumber(redis.call('HGET', K.versions, 'drivers')) or now * 1000
  redis.call('HSET', K.versions, 'drivers', string.format('%d', version + 1))
end
return { changed and 1 or 0, lost }
