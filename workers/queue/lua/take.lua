-- TAKE(key, process, token, ttl_ms, lock...): ticketed -> running with all its locks. The same token gets
-- the same answer.
-- Touches leases, ticketed, leased, holders, reserved, blocked, waiters, delayed, since,
-- fence.
-- Returns {status, tickets, fence, started_ms, fails, memo, mark, waited_ms, epoch, versions, complete kinds,
-- intent, unsaved PV, was saved}; the last three belong to the first lock's name.
local key, process, token = ARGV[2], ARGV[3], ARGV[4]
local ttl, domain = tonumber(ARGV[5]), string.sub(ARGV[6] or '', 3)
local lane = lane_of(key)

local function taken(fence, started, waited)
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
  return { 'taken', tickets, fence, started, redis.call('HGET', K.fails, key) or '0',
    redis.call('HGET', K.memos, key) or '', redis.call('HGET', K.marks, key) or '',
    string.format('%d', math.max(0, waited)), epoch,
    redis.call('HGETALL', K.versions), complete, intent, unsaved, saved }
end

if not life() then return { 'new life', tickets } end
local lease = lease_of(key)
if lease then
  if lease.process == process and lease.token == token then
    return taken(lease.fence, lease.started, 0)
  end
  return { 'running', tickets }
end
if not redis.call('ZSCORE', K.ticketed .. lane, key) then return { 'none', tickets } end
if is_quiet() then return { 'quiet', tickets } end
if is_paused(lane) then
  redis.call('ZREM', K.ticketed .. lane, key)
  push(key, lane, true)
  return { 'paused', tickets }
end
for i = 6, #ARGV do
  local holder = rival(key, ARGV[i])
  if holder then
    redis.call('ZREM', K.ticketed .. lane, key)
    park(key, ARGV[i], holder)
    admit(lane)
    return { 'busy', tickets }
  end
end
local fence = redis.pcall('INCR', K.fence)
if type(fence) ~= 'number' or fence <= 1 then
  fence = now
  redis.call('SET', K.fence, string.format('%d', fence))
end
local since = tonumber(redis.call('HGET', K.since, key)) or now
redis.call('ZREM', K.ticketed .. lane, key)
redis.call('ZREM', K.delayed, key)
redis.call('HDEL', K.since, key)
redis.call('ZADD', K.leased .. lane, now + ttl, key)
charge(lane)
trail(key, stamped('taken ' .. process))
local new = { fence = string.format('%d', fence), process = process, token = token,
  started = string.format('%d', now), locks = {} }
for i = 6, #ARGV do hold(key, new, ARGV[i]) end
write_lease(key, new)
admit(lane)
return taken(new.fence, new.started, now - since)
