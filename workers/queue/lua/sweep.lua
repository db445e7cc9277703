-- SWEEP(period_ms, limit, check_ms, ttl_ms, keep_limits_ms): do the work that has become due with
-- time.
-- Touches everything of the queue. Returns {ms until the next key is due or -1, lists to wake}.
local period, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
local check_ms, ttl, keep_limits = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- Return the keys of a lane whose leases end by then. A key of another lane is dropped, because
-- nothing else would ever remove it.
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

-- Drop the keys that wait for a node that is gone for good; return true if none is left. If the
-- node returns, its registration adds the keys of its objects again, and recovery.py adds the keys
-- of records in any case.
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

-- Due keys do not wait for the period: a retry must start when its back-off ends.
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
if not is_quiet() then -- otherwise processes are still restoring their leases
  for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
    for _, key in ipairs(leased(lane, now)) do
      take_back(key, lease_of(key))
    end
  end
end

if is_check then
  look_for_room()
  -- A record may have been deleted by hand: a lease without a deadline gets one, and its owner
  -- renews it.
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
    -- These keys were chosen for a message by an older release, which sent one message per key.
    -- They are not moved at once, because that release's workers may still be running.
    for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.ticketed .. lane, '-inf', now - check_ms)) do
      redis.call('ZREM', K.ticketed .. lane, key)
      if is_at_home(key, lane) then enqueue(key, lane, true) else drop(key) end
    end
    -- Keys that arrive late for a node that no worker declares any more are dropped an hour from
    -- now.
    if string.find(lane, '@', 1, true) and redis.call('EXISTS', K.limits .. lane) == 0 then
      redis.call('ZADD', K.declared, 'NX', now, lane)
    end
  end
  redis.call('ZREMRANGEBYSCORE', K.procs, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', K.lost, '-inf', now - 600000)
  -- Drop limits that no worker declares any more, for example those of a node that is gone.
  local old = redis.call('ZRANGEBYSCORE', K.declared, '-inf', now - keep_limits, 'LIMIT', 0, limit)
  for _, lane in ipairs(old) do
    redis.call('DEL', K.limits .. lane, K.ghosts .. lane)
    redis.call('HDEL', K.turns, lane)
    if not string.find(lane, '@', 1, true) or clear(lane) then redis.call('ZREM', K.declared, lane) end
  end
  local flat = redis.call('HGETALL', K.blocked)
  for i = 1, #flat, 2 do
    -- The first condition is needed because an earlier iteration of this loop may have woken the
    -- key.
    local key, lock = flat[i], flat[i + 1]
    if redis.call('HGET', K.blocked, key) == lock and not holder_against(key, lock) then
      unpark(string.sub(lock, 3))
    end
  end
  local week_ago = now - 604800000
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.abandoned, '-inf', week_ago)) do forget_failures(key) end
end

for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
  wake_lane(lane) -- other waiting kinds of its driver get their own turn in this loop
  if redis.call('EXISTS', K.leased .. lane, K.ready .. lane, K.retry .. lane, K.ticketed .. lane) == 0 then
    redis.call('SREM', K.lanes, lane)
  end
end
return reply()
