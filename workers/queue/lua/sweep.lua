-- SWEEP(period_ms, limit, check_ms, ttl_ms, keep_limits_ms): what time has made due.
-- Touches everything of the queue. Returns {ms until the next key is due or -1, lists to wake}.
local period, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local check_ms, ttl, keep_limits = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

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
  for _, family in ipairs({ K.ready, K.retry }) do
    for _, key in ipairs(redis.call('ZRANGE', family .. lane, 0, limit - 1)) do
      redis.call('ZREM', family .. lane, key)
      redis.call('HDEL', K.since, key)
      forget_failures(key)
    end
  end
  if redis.call('EXISTS', K.ready .. lane, K.retry .. lane) > 0 then return false end
  redis.call('DEL', K.share .. lane, K.share_retry .. lane)
  return true
end

local function reply()
  local first = redis.call('ZRANGE', K.delayed, 0, 0, 'WITHSCORES')[2]
  return { first and math.max(0, math.ceil(tonumber(first) - now)) or -1, lists }
end

if not life() then return { -1, lists } end

-- What is due does not wait for the period: a retry starts when its back-off says.
local due_lanes = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.delayed, '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZREM', K.delayed, key)
  local lane = lane_of(key)
  enqueue(key, lane, false)
  due_lanes[lane] = true
end
if not begins_period('sweep', period) then
  for lane in pairs(due_lanes) do wake(lane) end
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
    -- What a release with a message per key had chosen for one. Not at once: its workers may be there.
    for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.ticketed .. lane, '-inf', now - check_ms)) do
      redis.call('ZREM', K.ticketed .. lane, key)
      if is_at_home(key, lane) then enqueue(key, lane, true) else drop(key) end
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
      unpark(string.sub(lock, 3))
    end
  end
  local week_ago = now - 604800000
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.abandoned, '-inf', week_ago)) do forget_failures(key) end
end

for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
  wake_lane(lane) -- other kinds of its driver that wait have their own turn here
  if redis.call('EXISTS', K.leased .. lane, K.ready .. lane, K.retry .. lane, K.ticketed .. lane) == 0 then
    redis.call('SREM', K.lanes, lane)
  end
end
return reply()
