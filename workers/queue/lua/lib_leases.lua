-- Locks and leases: functions that all scripts share, loaded after lib.lua.

-- A lock is spelled 'x:name' (exclusive) or 's:name' (shared).
local function mode_and_name(lock) return string.sub(lock, 1, 1), string.sub(lock, 3) end

-- Return another key that holds a lock against `key`, nil if there is none. Shared holders do not
-- exclude each other. Only a holder excludes others, never a waiter: the waiter might be unable to
-- run, or wait for a call that hangs. `counts(holder)` may return false to ignore a holder.
local function holder_against(key, lock, counts)
  local mode, name = mode_and_name(lock)
  local prefix = name .. '\0'
  local from = mode == 's' and prefix .. 'x' or prefix
  for _, member in ipairs(redis.call('ZRANGEBYLEX', K.holders, '[' .. from, '(' .. name .. '\1')) do
    local holder = string.sub(member, #prefix + 2)
    if holder ~= key then
      if redis.call('HEXISTS', K.leases, holder) == 0 then
        redis.call('ZREM', K.holders, member) -- the record of its lease was lost
      elseif not counts or counts(holder) then
        return holder
      end
    end
  end
  return nil
end

-- Add a free lock to the lease (which the caller writes) and to the holders.
local function hold(key, lease, lock)
  local mode, name = mode_and_name(lock)
  for i, held in ipairs(lease.locks) do
    if held == lock or held == 'x:' .. name then return end
    if held == 's:' .. name then -- the lock becomes exclusive
      redis.call('ZREM', K.holders, name .. '\0s' .. key)
      table.remove(lease.locks, i)
      break
    end
  end
  redis.call('ZADD', K.holders, 0, name .. '\0' .. mode .. key)
  lease.locks[#lease.locks + 1] = lock
end

-- Let `key` wait for a lock; it occupies no slot meanwhile.
local function park(key, lock, holder)
  local _, name = mode_and_name(lock)
  redis.call('HSET', K.blocked, key, lock)
  redis.call('HSETNX', K.since, key, now)
  redis.call('ZADD', K.waiters, 0, name .. '\0' .. key)
  trail(key, stamped('blocked ' .. holder))
end

-- Make the keys that wait for a lock ready. Those that still find the lock busy wait again.
local function unpark(name)
  local prefix = name .. '\0'
  local waiters = redis.call('ZRANGEBYLEX', K.waiters, '[' .. prefix, '(' .. name .. '\1')
  local lanes = {}
  for _, member in ipairs(waiters) do
    local waiter = string.sub(member, #prefix + 1)
    redis.call('ZREM', K.waiters, member)
    redis.call('HDEL', K.blocked, waiter)
    local lane = lane_of(waiter)
    if enqueue(waiter, lane, true) then lanes[lane] = true end
  end
  for lane in pairs(lanes) do wake(lane) end
end

local function free(key, lock)
  local mode, name = mode_and_name(lock)
  redis.call('ZREM', K.holders, name .. '\0' .. mode .. key)
  local others = { '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1 }
  if #redis.call('ZRANGEBYLEX', K.holders, unpack(others)) == 0 then unpark(name) end
end

local function free_all(key, lease)
  for _, lock in ipairs(lease.locks) do free(key, lock) end
end

-- Return true if resourceVersion a is newer than b. Both are integers of any length, because Lua's
-- numbers lose digits above 2^53.
local function is_newer(a, b)
  a, b = string.gsub(a, '^0+', ''), string.gsub(b, '^0+', '')
  if #a ~= #b then return #a > #b end
  return a > b
end

-- Return the version of the key's newest event in the last few minutes, nil if there is none.
local function newest_seen(key)
  local minute = math.floor(now / 60000)
  return redis.call('HGET', K.seen .. minute, key) or redis.call('HGET', K.seen .. (minute - 1), key)
end

-- Note an event for the key; return false if it is not newer than the newest event noted.
local function is_news(key, version)
  local newest = newest_seen(key)
  if newest and not is_newer(version, newest) then return false end
  local seen = K.seen .. math.floor(now / 60000)
  redis.call('HSET', seen, key, version)
  redis.call('EXPIRE', seen, 180)
  return true
end

-- End a lease: remove its slot and its dirty mark. Returns true if the key was dirty. An event
-- makes it dirty only if the event is newer than `known`, the last version that the reconcile read
-- or wrote ('' or nil for none). The caller then enqueues or delays the key, frees its locks and
-- wakes its lane.
local function unlease(key, lane, known)
  redis.call('HDEL', K.leases, key)
  redis.call('HDEL', K.since, key) -- left over if no ENTER followed the TAKE
  redis.call('ZREM', K.leased .. lane, key)
  local event = redis.call('HGET', K.news, key)
  if event then
    redis.call('HDEL', K.news, key)
    if (known or '') == '' or is_newer(event, known) then redis.call('SADD', K.dirty, key) end
  end
  return redis.call('SREM', K.dirty, key) == 1
end

-- Return the key's lease if the process holds it with this token, otherwise nil.
local function lease_by(key, process, token)
  local lease = lease_of(key)
  return lease and lease.process == process and lease.token == token and lease or nil
end

-- Check the owner. Returns the lease; or nil, and whether this call repeats one that ended the
-- lease. A lease that was taken in this life and not taken back was ended by its owner. A replica
-- that lagged has the epoch of its master's life but not its leases.
local function owned(key, process, token, epoch)
  local lease = lease_by(key, process, token)
  if lease then return lease, true end
  local is_ended = life() == epoch and not redis.call('ZSCORE', K.lost, token)
  return nil, is_ended
end

-- The common beginning of all scripts (key, process, token, epoch, stays, ...) that end a lease:
-- returns the key, its lane and the results of `owned`. If `stays` is set, the caller itself takes
-- the next key of the list.
local function ending()
  local key, lane = ARGV[2], lane_of(ARGV[2])
  if ARGV[6] == '1' then own_list = celery_of(lane) end
  return key, lane, owned(key, ARGV[3], ARGV[4], ARGV[5])
end

-- Count the bytes of intents by namespace, before an intent is written or, if `record` is '',
-- removed. The counts become inexact if another program writes intents; the recovery counts them
-- again every minute. For a new intent that would exceed `most`, returns false and counts nothing.
local function weigh(intents, domain, record, most)
  local old = redis.call('HGET', intents, domain) or ''
  local tenant = string.match(record == '' and old or record, '^[^:{]*:([^:]*):') or ''
  if tenant == '' then return true end
  local held = (tonumber(redis.call('HGET', K.held, tenant)) or 0) + #record - #old
  if most and old == '' and held > most then return false end
  if held > 0 then
    redis.call('HSET', K.held, tenant, string.format('%d', held))
  else
    redis.call('HDEL', K.held, tenant)
  end
  return true
end

-- Drop a claim's intent and unsaved PV, because the outcome is known.
local function end_attempt(driver, domain)
  weigh(K.intents .. driver, domain, '')
  redis.call('HDEL', K.intents .. driver, domain)
  redis.call('HDEL', K.unsaved .. driver, domain)
end

-- Forget the failures of a key. The sweep uses this, because the worker that sweeps may belong to
-- another driver and cannot reach the records of this one.
local function forget_failures(key)
  redis.call('HDEL', K.fails, key)
  redis.call('ZREM', K.abandoned, key)
end

local function forget(key)
  forget_failures(key)
  redis.call('HDEL', K.memos .. driver_part(key), key)
end

-- If a driver allows only one call at a time, it may still be executing the call of a dead process.
-- Until that call's deadline, no other process begins a call.
local function haunt(key, lane)
  local raw = redis.call('HMGET', K.limits .. lane, 'hold', 'concurrency', 'total')
  local hold = tonumber(raw[1]) or 0
  if hold > 0 and (raw[2] == '1' or raw[3] == '1') then
    redis.call('ZADD', K.ghosts .. lane, now + hold, key)
  end
end

-- Take a lease back, because its process died or a newer owner has the lock or key; the key becomes
-- ready again.
local function take_back(key, lease)
  local lane = lane_of(key)
  trail(key, stamped('lost ' .. (lease and lease.process or '')))
  unlease(key, lane)
  haunt(key, lane)
  enqueue(key, lane, true)
  if lease then
    redis.call('ZADD', K.lost, now, lease.token)
    free_all(key, lease)
  end
  wake(lane)
end
