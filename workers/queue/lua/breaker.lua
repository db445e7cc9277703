-- BREAKER(event, driver, kinds, ...): one event of a driver's circuit breaker.
--   failed(reason, threshold, window_ms, base_ms, max_ms, jitter_percent)   a call went wrong
--   ok()                     a call, made after failures, was answered
--   half()                   Probe is answered: let single calls through when the time has come,
--                            retries first: a poll may find its work done, which proves more
--                            than a first attempt that the driver has to begin
--   lost(reason, process)    the process has no connection any more
--   back(process, ttl_ms)    the process is connected, and knows the driver
-- Record: 'state fails since_ms until_ms span_ms reason'; none = closed and healthy.
-- Touches breakers (hash), links:<driver> (zset), paused (hash), limits:<lane> (hash), all lanes.
-- Returns {tickets, state}.
local event, driver, kinds = ARGV[2], ARGV[3], ARGV[4]
local LOST_MS, HALF_MS, RAMP_MS = 15000, 30000, 250
local state, fails, since, until_ms, span, reason = 'closed', 0, now, 0, 0, ''
local raw = redis.call('HGET', K.breakers, driver)
if raw then
  local s, f, a, b, c, text = string.match(raw, '^(%S+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if s then
    state, fails, since, until_ms, span, reason =
      s, tonumber(f), tonumber(a), tonumber(b), tonumber(c), text
  end
end

local function each_lane(act)
  for kind in string.gmatch(kinds, '%S+') do act(kind .. '|' .. driver) end
end
local function save()
  redis.call('HSET', K.breakers, driver,
    string.format('%s %d %d %d %d %s', state, fails, since, until_ms, span, reason))
end
local function stop(until_at)
  each_lane(function(lane)
    redis.call('HSET', K.paused, 'breaker ' .. lane, string.format('%d %s', until_at, reason))
  end)
end
local function go(step)
  each_lane(function(lane)
    redis.call('HDEL', K.paused, 'breaker ' .. lane)
    local declared = tonumber(redis.call('HGET', K.limits .. lane, 'concurrency')) or 1
    lower(lane, 1, step, step > 0 and math.max(1, math.floor(declared / 20)) or 0)
    admit(lane)
  end)
end
local function close()
  state = 'closed'
  redis.call('HDEL', K.breakers, driver)
  go(RAMP_MS)
end
local function open(base, longest, jitter)
  span = span > 0 and math.min(span * 2, longest) or base
  until_ms = math.floor(now + span * (1 + jitter / 100))
  state, since, fails = 'open', now, 0
  save()
  stop(until_ms + 60000)
end

if event == 'failed' then
  local text, threshold, window = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
  local base, longest, jitter = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
  if state == 'half' then
    reason = text
    open(base, longest, jitter)
  elseif state == 'closed' then
    if now - since > window then fails, since = 0, now end
    fails, reason = fails + 1, text
    if fails >= threshold then open(base, longest, jitter) else save() end
  end
elseif event == 'ok' then
  if state == 'half' then close() elseif state == 'closed' and raw then
    redis.call('HDEL', K.breakers, driver)
  end
elseif event == 'half' then
  if state == 'open' and now >= until_ms then
    state, since, until_ms = 'half', now, now + HALF_MS
    save()
    each_lane(function(lane) redis.call('HSET', K.limits .. lane, 'streak', FIRST_PER_RETRY) end)
    go(0)
  elseif state == 'half' and now >= until_ms then
    close()
  end
elseif event == 'lost' then
  local links = K.links .. driver
  redis.call('ZREM', links, ARGV[6])
  redis.call('ZREMRANGEBYSCORE', links, '-inf', now)
  if redis.call('ZCARD', links) == 0 then
    if state ~= 'lost' then since = now end
    state, fails, until_ms, span, reason = 'lost', 0, now + LOST_MS, 0, ARGV[5]
    save()
    stop(until_ms)
  elseif state == 'lost' then -- somebody else is connected, and Redis did not know of it before
    close()
  end
elseif event == 'back' then
  redis.call('ZADD', K.links .. driver, now + tonumber(ARGV[6]), ARGV[5])
  redis.call('PEXPIRE', K.links .. driver, KEPT_MS)
  if state == 'lost' then close() end
end
return { tickets, state }
