-- TAKE(key, process, token, domain): ticketed -> running. The same token gets the same answer.
-- Touches procs, leases, ticketed, running, domains, blocked, waiters, delayed, since, fence.
-- Returns {status, tickets, fence, fails, memo, waited_ms, epoch, versions, complete kinds, intent,
-- unsaved PV, was saved}; the last three belong to the domain.
local key, process, token, domain = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lane = lane_of(key)

local function taken(fence, waited)
  local epoch = redis.call('GET', K.epoch) or ''
  local complete, flat = {}, redis.call('HGETALL', K.complete)
  for i = 1, #flat, 2 do
    if flat[i + 1] == epoch then complete[#complete + 1] = flat[i] end
  end
  local intent, unsaved, saved = false, false, 0
  if domain ~= '' then
    intent, unsaved = redis.call('HGET', K.intents, domain), redis.call('HGET', K.unsaved, domain)
    saved = redis.call('EXISTS', K.saved .. domain)
  end
  return { 'taken', tickets, fence, redis.call('HGET', K.fails, key) or '0',
    redis.call('HGET', K.memos, key) or '', string.format('%d', math.max(0, waited)), epoch,
    redis.call('HGETALL', K.versions), complete, intent, unsaved, saved }
end

if not redis.call('ZSCORE', K.procs, process) then return { 'unregistered', tickets } end
local lease = lease_of(key)
if lease then
  if lease.process == process and lease.token == token then return taken(lease.fence, 0) end
  return { 'running', tickets }
end
if not redis.call('ZSCORE', K.ticketed .. lane, key) then return { 'none', tickets } end
if is_paused(lane) then
  redis.call('ZREM', K.ticketed .. lane, key)
  push(key, lane, true)
  return { 'paused', tickets }
end
local holder = domain ~= '' and redis.call('HGET', K.domains, domain)
if holder and redis.call('HEXISTS', K.leases, holder) == 1 then
  redis.call('ZREM', K.ticketed .. lane, key)
  redis.call('HSET', K.blocked, key, domain)
  trail(key, stamped('blocked ' .. holder))
  redis.call('ZADD', K.waiters, 0, domain .. '\0' .. key)
  admit(lane)
  return { 'busy', tickets }
end
-- Starts at the time, so that it goes on growing after Redis lost its data.
local fence = redis.pcall('INCR', K.fence)
if type(fence) ~= 'number' or fence == 1 then
  fence = now
  redis.call('SET', K.fence, string.format('%d', fence))
end
local since = tonumber(redis.call('HGET', K.since, key)) or now
redis.call('ZREM', K.ticketed .. lane, key)
redis.call('ZREM', K.delayed, key)
redis.call('HDEL', K.since, key)
redis.call('SADD', K.running .. lane, key)
charge(lane)
if domain ~= '' then redis.call('HSET', K.domains, domain, key) end
trail(key, stamped('taken ' .. process))
redis.call('HSET', K.leases, key,
  string.format('%d %s %s %d %s', fence, process, token, now, domain))
return taken(string.format('%d', fence), now - since)
