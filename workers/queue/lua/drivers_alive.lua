-- DRIVERS_ALIVE(): read the drivers that a worker serves now.
-- Touches drivers, drivers_until; writes nothing. Returns {version, name, record, ...}.
local reply = { redis.call('HGET', K.versions, 'drivers') or '0' }
local alive = redis.call('ZRANGEBYSCORE', K.drivers_until, '(' .. string.format('%d', now), '+inf')
for _, name in ipairs(alive) do
  reply[#reply + 1] = name
  reply[#reply + 1] = redis.call('HGET', K.drivers, name) or '{}'
end
return reply
