-- TAKE(key, process, token, lock...): ticketed -> running with all its locks. The same token gets
-- the same answer.
-- Touches procs, leases, ticketed, running, holders, reserved, blocked, waiters, delayed, since,
-- fence.
-- Returns {status, tickets, fence, fails, memo, mark, waited_ms, epoch, versions, complete kinds,
-- intent, unsaved PV, was saved}; the last three belong to the first lock's name.
local key, process, token = ARGV[2], ARGV[3], ARGV[4]
local domain = string.sub(ARGV[5] or '', 3)
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
    redis.call('HGET', K.memos, key) or '', redis.call('HGET', K.marks, key) or '',
    string.format('%d', math.max(0, waited)), epoch,
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
for i = 5, #ARGV do
  local holder = rival(key, ARGV[i])
  if holder then
    redis.call('ZREM', K.ticketed .. lane, key)
    park(key, ARGV[i], holder)
    admit(lane)
    return { 'busy', tickets }
  end
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
trail(key, stamped('taken ' .. process))
local new = { fence = string.format('%d', fence), process = process, token = token,
  started = string.format('%d', now), locks = {} }
for i = 5, #ARGV do hold(key, new, ARGV[i]) end
write_lease(key, new)
return taken(new.fence, now - since)
