-- DRIVERS_KEEP(process, ttl_ms, name, record, connected, ...): the process serves these drivers.
-- `connected` is 0 or 1 or, for a driver of which only one replica is called, that replica's
-- address.
-- Touches drivers (hash), drivers_until (zset), links:<driver> (zset), chosen:<driver> (string),
-- versions (hash, field drivers), paused (hash). Idempotent.
-- Returns {1 if the set of drivers or a record changed, connected drivers that count as lost or for
-- which another replica was chosen}.
local process, ttl = ARGV[2], tonumber(ARGV[3])
local changed, lost = false, {}
for i = 4, #ARGV, 3 do
  local name, record = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', K.drivers, name) ~= record then
    redis.call('HSET', K.drivers, name, record)
    changed = true
  end
  redis.call('ZADD', K.drivers_until, now + ttl, name)
  local connected = ARGV[i + 2]
  if connected ~= '0' then
    local driver = string.match(name, '^[^#]*') -- without the controller, see registry.py
    local chosen = connected == '1' and '1'
      or string.match(redis.call('GET', K.chosen .. driver) or '', '%S+$')
    if chosen == connected then
      redis.call('ZADD', K.links .. driver, now + ttl, process)
      redis.call('PEXPIRE', K.links .. driver, KEPT_MS)
    end
    local paused = 'driver ' .. CALL_KINDS[1] .. '|' .. driver
    if chosen ~= connected or redis.call('HEXISTS', K.paused, paused) == 1 then
      lost[#lost + 1] = driver
    end
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
