-- SWEEP(period_ms, limit, republish_after_ms, check_ms, ttl_ms, keep_limits_ms): what time has made
-- due.
-- Touches everything of the queue. Returns {ms until the next key is due or -1, tickets to publish}.
local period, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local republish_after, check_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
local ttl, keep_limits = tonumber(ARGV[6]), tonumber(ARGV[7])

-- Keys of a lane whose leases end until then. Another lane's would never go.
local function leased(lane, most)
  local found = {}
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.leased .. lane, '-inf', most)) do
    if lane_of(key) == lane then
      found[#found + 1] = key
    else
      redis.call('ZREM', K.leased .. lane, key)
      drop(key)
    end
  end
  return found
end

-- What waits for a node that went for good goes too; returns whether none is left. With the node its
-- objects' keys come back (its registration), and those of records in any case (recovery.py).
local function clear(lane)
  for _, family in ipairs({ K.ready, K.retry, K.ticketed }) do
    for _, key in ipairs(redis.call('ZRANGE', family .. lane, 0, limit - 1)) do
      redis.call('ZREM', family .. lane, key)
      redis.call('HDEL', K.since, key)
      forget(key)
    end
  end
  if redis.call('EXISTS', K.ready .. lane, K.retry .. lane, K.ticketed .. lane) > 0 then return false end
  redis.call('DEL', K.share .. lane, K.share_retry .. lane)
  return true
end

local function reply()
  local first = redis.call('ZRANGE', K.delayed, 0, 0, 'WITHSCORES')[2]
  return { first and math.max(0, math.ceil(tonumber(first) - now)) or -1, tickets }
end

if not life() then return { -1, tickets } end

-- What is due does not wait for the period: a retry starts when its back-off says.
local due_lanes, is_due = {}, {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.delayed, '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', K.delayed, key)
  local lane = lane_of(key)
  enqueue(key, lane, false)
  if not is_due[lane] then
    is_due[lane] = true
    due_lanes[#due_lanes + 1] = lane
  end
end
if not begins_period('sweep', period) then
  for _, lane in ipairs(due_lanes) do admit(lane) end
  return reply()
end

local is_check = begins_period('check', check_ms)
if not is_quiet() then -- processes restore their leases
  for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
    for _, key in ipairs(leased(lane, now)) do
      take_back(key, lease_of(key))
    end
  end
end

if is_check then
  look_for_room()
  -- A record may be lost by somebody's hand: a lease without deadline gets one, its owner renews it.
  for _, key in ipairs(redis.call('HKEYS', K.leases)) do
    local lane = lane_of(key)
    if not redis.call('ZSCORE', K.leased .. lane, key) then
      redis.call('ZADD', K.leased .. lane, now + ttl, key)
      redis.call('SADD', K.lanes, lane)
    end
  end
  for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
    for _, key in ipairs(leased(lane, '+inf')) do
      if not lease_of(key) then take_back(key) end
    end
    -- What comes late for a node that nobody declares goes an hour from now.
    if string.find(lane, '@', 1, true) and redis.call('EXISTS', K.limits .. lane) == 0 then
      redis.call('ZADD', K.declared, 'NX', now, lane)
    end
  end
  redis.call('ZREMRANGEBYSCORE', K.procs, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', K.lost, '-inf', now - 600000)
  -- Limits that no worker declares any more, of a node that went for example.
  local old = redis.call('ZRANGEBYSCORE', K.declared, '-inf', now - keep_limits, 'LIMIT', 0, limit)
  for _, lane in ipairs(old) do
    redis.call('DEL', K.limits .. lane, K.ghosts .. lane)
    if not string.find(lane, '@', 1, true) or clear(lane) then redis.call('ZREM', K.declared, lane) end
  end
  local flat = redis.call('HGETALL', K.blocked)
  for i = 1, #flat, 2 do
    -- The first part: an earlier one of this loop may have woken it.
    local key, lock = flat[i], flat[i + 1]
    if redis.call('HGET', K.blocked, key) == lock and not holder_against(key, lock) then
      wake(string.sub(lock, 3))
    end
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
  local lane = lanes[(i + offset) % #lanes + 1]
  local ticketed, list = K.ticketed .. lane, celery_of(lane)
  local old = redis.call('ZRANGEBYSCORE', ticketed, '-inf', now - republish_after, 'LIMIT', 0, limit)
  if #old > 0 and not is_paused(lane) and not is_quiet() then
    local missing = out[list] - redis.call('LLEN', list)
    for n = 1, math.min(missing, #old, MAX_TICKETS - #tickets) do
      if is_at_home(old[n], lane) then
        redis.call('ZADD', ticketed, now, old[n])
        tickets[#tickets + 1] = old[n]
      else
        redis.call('ZREM', ticketed, old[n])
        drop(old[n])
      end
      out[list] = out[list] - 1
    end
  end
  admit(lane)
  if redis.call('EXISTS', ticketed, K.leased .. lane, K.ready .. lane, K.retry .. lane) == 0 then
    redis.call('SREM', K.lanes, lane)
  end
end
return reply()
