-- REGAIN(process, candidate, known, ttl_ms, (key, fence, token, started, locks, n, (slot, name,
-- record) x n)...): restore the leases of a process in a new life of Redis, which may have lost
-- them or may know an older owner. The higher fence is the newer owner. Records are written as the
-- owner knows them.
-- Touches everything of the queue. Returns {epoch, lists, {tokens of lost leases...}, the time in
-- ms}.
local process, ttl = ARGV[2], tonumber(ARGV[5])
local epoch = begin_life(ARGV[3], ARGV[4], ttl)
if type(epoch) == 'table' then return epoch end
redis.call('ZADD', K.procs, now + ttl, process)

local function older(key, fence)
  local lease = lease_of(key)
  return not lease or tonumber(lease.fence) < tonumber(fence), lease
end

local function is_same(lease, mine)
  return lease and lease.process == process and lease.token == mine.token
end

-- Return true if no newer owner has the key or one of its locks; older owners lose them.
local function make_room(key, mine)
  local is_older, present = older(key, mine.fence)
  if present and not (is_older or is_same(present, mine)) then return false end
  local rivals = {}
  for _, lock in ipairs(mine.locks) do
    local newer = holder_against(key, lock, function(holder)
      rivals[#rivals + 1] = holder
      return not older(holder, mine.fence)
    end)
    if newer then return false end
  end
  if present then
    if not is_same(present, mine) then redis.call('ZADD', K.lost, now, present.token) end
    redis.call('HDEL', K.leases, key)
    free_all(key, present)
  end
  for _, holder in ipairs(rivals) do
    local lease = lease_of(holder)
    if lease then take_back(holder, lease) end
  end
  return true
end

local function restore(key, mine)
  local lane, present = lane_of(key), lease_of(key)
  -- A replica that lagged may lack the lock that was taken last, or still have a lock that was
  -- released.
  local locks = table.concat(mine.locks, ' ')
  if not (is_same(present, mine) and table.concat(present.locks, ' ') == locks) then
    if redis.call('ZSCORE', K.lost, mine.token) or not make_room(key, mine) then return false end
    if is_waiting(key, lane) then redis.call('SADD', K.dirty, key) end
    for ready, share in pairs({ [K.ready] = K.share, [K.retry] = K.share_retry }) do
      redis.call('ZREM', ready .. lane, key)
      if redis.call('EXISTS', ready .. lane) == 0 then redis.call('DEL', share .. lane) end
    end
    local busy = redis.call('HGET', K.blocked, key)
    if busy then redis.call('ZREM', K.waiters, string.sub(busy, 3) .. '\0' .. key) end
    redis.call('HDEL', K.blocked, key)
    redis.call('HDEL', K.since, key)
    redis.call('ZREM', K.delayed, key)
    redis.call('SADD', K.lanes, lane)
    local wanted
    mine.locks, wanted = {}, mine.locks
    for _, lock in ipairs(wanted) do hold(key, mine, lock) end
    write_lease(key, mine)
    if tonumber(redis.call('GET', K.fence)) < tonumber(mine.fence) then
      redis.call('SET', K.fence, mine.fence)
    end
    trail(key, stamped('restored ' .. process))
  end
  redis.call('ZADD', K.leased .. lane, now + ttl, key)
  return true
end

local lost, i = {}, 6
while i <= #ARGV do
  local key, count = ARGV[i], tonumber(ARGV[i + 5])
  local mine = { fence = ARGV[i + 1], process = process, token = ARGV[i + 2],
    started = ARGV[i + 3], locks = {} }
  for lock in string.gmatch(ARGV[i + 4], '%S+') do mine.locks[#mine.locks + 1] = lock end
  i = i + 6
  local is_ours = restore(key, mine)
  if not is_ours then
    redis.call('ZADD', K.lost, now, mine.token)
    lost[#lost + 1] = mine.token
  end
  for _ = 1, count do
    if is_ours then redis.call('HSET', K[ARGV[i]] .. driver_part(key), ARGV[i + 1], ARGV[i + 2]) end
    i = i + 3
  end
end
return { epoch, lists, lost, now }
