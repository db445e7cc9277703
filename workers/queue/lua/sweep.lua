-- SWEEP(period_ms, limit, republish_after_ms, check_ms): what time has made due.
-- Touches everything of the queue. Returns the tickets to publish.
local period, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local republish_after, check_ms = tonumber(ARGV[4]), tonumber(ARGV[5])

local function once_per(guard, ms)
  return ms <= 0 or redis.call('SET', guard, '1', 'NX', 'PX', string.format('%d', ms))
end

if not once_per(K.sweep_guard, period) then return tickets end

for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.delayed, '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', K.delayed, key)
  enqueue(key, lane_of(key), false)
end

-- Dead processes: at the deadline; now and then every lease is compared, for a record may be lost.
local dead = redis.call('ZREMRANGEBYSCORE', K.procs, '-inf', now)
local is_check = once_per(K.check_guard, check_ms)
if dead > 0 or is_check then release_dead() end

if is_check then
  local flat = redis.call('HGETALL', K.blocked)
  for i = 1, #flat, 2 do
    -- The first part: an earlier one of this loop may have woken it.
    if redis.call('HGET', K.blocked, flat[i]) == flat[i + 1] and not rival(flat[i], flat[i + 1]) then
      wake(string.sub(flat[i + 1], 3))
    end
  end
  flat = redis.call('HGETALL', K.reserved)
  for i = 1, #flat, 2 do
    local until_ms = tonumber(string.match(flat[i + 1], '^(%d+) ')) or 1
    if until_ms > 0 and until_ms <= now then redis.call('HDEL', K.reserved, flat[i]) end
  end
  local week_ago = now - 604800000
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.abandoned, '-inf', week_ago)) do forget(key) end
end

local lanes = redis.call('SMEMBERS', K.lanes)
local out = {} -- tickets out by Celery list
for _, lane in ipairs(lanes) do
  local list = celery_of(lane)
  out[list] = (out[list] or 0) + redis.call('ZCARD', K.ticketed .. lane)
end
-- Those admitted above are not lost: their messages are sent after this script.
for _, key in ipairs(tickets) do
  local list = celery_of(lane_of(key))
  out[list] = (out[list] or 0) - 1
end
-- A different lane comes first each time, so that the bound on tickets starves none.
local offset = #lanes > 0 and math.floor(now / 100) % #lanes or 0
for i = 1, #lanes do
  local lane = lanes[(i + offset - 1) % #lanes + 1]
  local ticketed, list = K.ticketed .. lane, celery_of(lane)
  if is_check then
    for _, key in ipairs(redis.call('SMEMBERS', K.running .. lane)) do
      if redis.call('HEXISTS', K.leases, key) == 0 then
        redis.call('SREM', K.running .. lane, key)
        enqueue(key, lane, true)
      end
    end
  end
  local old = redis.call('ZRANGEBYSCORE', ticketed, '-inf', now - republish_after, 'LIMIT', 0, limit)
  if #old > 0 and not is_paused(lane) then
    local missing = out[list] - redis.call('LLEN', list)
    for n = 1, math.min(missing, #old, MAX_TICKETS - #tickets) do
      redis.call('ZADD', ticketed, now, old[n])
      tickets[#tickets + 1] = old[n]
      out[list] = out[list] - 1
    end
  end
  admit(lane)
  if redis.call('EXISTS', ticketed, K.running .. lane, K.ready .. lane, K.retry .. lane) == 0 then
    redis.call('SREM', K.lanes, lane)
  end
end
return tickets
