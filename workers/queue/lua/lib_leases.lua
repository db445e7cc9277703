-- Locks and leases: functions shared by all scripts, after lib.lua.

-- A lock is spelled 'x:name' (exclusive) or 's:name' (shared).
local function mode_and_name(lock) return string.sub(lock, 1, 1), string.sub(lock, 3) end

-- Another key that holds a lock against `key`, nil for none. Shared holders stand side by side. Only a
-- holder keeps others out: a waiter might be unable to run, or wait for a call that hangs.
-- `counts` may pass over some: holder -> boolean.
local function holder_against(key, lock, counts)
  local mode, name = mode_and_name(lock)
  local prefix = name .. '\0'
  local from = mode == 's' and prefix .. 'x' or prefix
  for _, member in ipairs(redis.call('ZRANGEBYLEX', K.holders, '[' .. from, '(' .. name .. '\1')) do
    local holder = string.sub(member, #prefix + 2)
    if holder ~= key then
      if redis.call('HEXISTS', K.leases, holder) == 0 then
        redis.call('ZREM', K.holders, member) -- its lease record was lost
      elseif not counts or counts(holder) then
        return holder
      end
    end
  end
  return nil
end

-- Note a free lock in the lease (the caller writes it) and among the holders.
local function hold(key, lease, lock)
  local mode, name = mode_and_name(lock)
  for i, held in ipairs(lease.locks) do
    if held == lock or held == 'x:' .. name then return end
    if held == 's:' .. name then -- from now on alone
      redis.call('ZREM', K.holders, name .. '\0s' .. key)
      table.remove(lease.locks, i)
      break
    end
  end
  redis.call('ZADD', K.holders, 0, name .. '\0' .. mode .. key)
  lease.locks[#lease.locks + 1] = lock
end

-- `key` waits for a lock; it occupies no slot meanwhile.
local function park(key, lock, holder)
  local _, name = mode_and_name(lock)
  redis.call('HSET', K.blocked, key, lock)
  redis.call('HSETNX', K.since, key, now)
  redis.call('ZADD', K.waiters, 0, name .. '\0' .. key)
  trail(key, stamped('blocked ' .. holder))
end

-- Make the waiters of a lock ready. Those that still find it busy wait again.
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

-- Is resourceVersion a newer than b? Integers of any length: numbers of Lua lose digits above 2^53.
local function is_newer(a, b)
  a, b = string.gsub(a, '^0+', ''), string.gsub(b, '^0+', '')
  if #a ~= #b then return #a > #b end
  return a > b
end

-- The version of the key's newest event in the last minutes, nil for none.
local function newest_seen(key)
  local minute = math.floor(now / 60000)
  return redis.call('HGET', K.seen .. minute, key) or redis.call('HGET', K.seen .. (minute - 1), key)
end

-- Note an event of the key; returns false for one that is not newer than what was noted.
local function is_news(key, version)
  local newest = newest_seen(key)
  if newest and not is_newer(version, newest) then return false end
  local seen = K.seen .. math.floor(now / 60000)
  redis.call('HSET', seen, key, version)
  redis.call('EXPIRE', seen, 180)
  return true
end

-- End a lease: the slot and the dirty mark go; returns true when the key was dirty, by an event only
-- if that is newer than version `known`, the last that the pass read or wrote ('' or nil: none).
-- The caller puts the key where it belongs, frees the locks and then wakes its lane.
local function unlease(key, lane, known)
  redis.call('HDEL', K.leases, key)
  redis.call('HDEL', K.since, key) -- of a key that no ENTER followed
  redis.call('ZREM', K.leased .. lane, key)
  local event = redis.call('HGET', K.news, key)
  if event then
    redis.call('HDEL', K.news, key)
    if (known or '') == '' or is_newer(event, known) then redis.call('SADD', K.dirty, key) end
  end
  return redis.call('SREM', K.dirty, key) == 1
end

-- The key's lease if the process holds it with this token, else nil.
local function lease_by(key, process, token)
  local lease = lease_of(key)
  return lease and lease.process == process and lease.token == token and lease or nil
end

-- Owner check. Returns the lease, or nil and whether this is the repeat of a call that ended it: a
-- lease of this life that was not taken back was ended by its owner. A replica that lagged has the
-- epoch of its master's life and not its leases.
local function owned(key, process, token, epoch)
  local lease = lease_by(key, process, token)
  if lease then return lease, true end
  local is_ended = life() == epoch and not redis.call('ZSCORE', K.lost, token)
  return nil, is_ended
end

-- How a script (key, process, token, epoch, stays, ...) begins that ends a lease: returns the key, its
-- lane, and what `owned` does. With `stays` the caller takes the next key of the list itself.
local function ending()
  local key, lane = ARGV[2], lane_of(ARGV[2])
  if ARGV[6] == '1' then own_list = celery_of(lane) end
  return key, lane, owned(key, ARGV[3], ARGV[4], ARGV[5])
end

-- Count the bytes of intents by namespace, before one is written, or goes (''). Not exact where
-- somebody else writes them; the recovery counts anew each minute. Returns false, and counts nothing,
-- for a new one beyond `most`.
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

-- The outcome is known: a claim's intent and unsaved PV go.
local function end_attempt(driver, domain)
  weigh(K.intents .. driver, domain, '')
  redis.call('HDEL', K.intents .. driver, domain)
  redis.call('HDEL', K.unsaved .. driver, domain)
end

-- For whoever sweeps, perhaps a worker beside another driver, which reaches no record of this one.
local function forget_failures(key)
  redis.call('HDEL', K.fails, key)
  redis.call('ZREM', K.abandoned, key)
end

local function forget(key)
  forget_failures(key)
  redis.call('HDEL', K.memos .. driver_part(key), key)
end

-- A driver that allows one call at a time may still be at the one of a dead process, until that
-- call's deadline: nobody else begins one before.
local function haunt(key, lane)
  local raw = redis.call('HMGET', K.limits .. lane, 'hold', 'concurrency', 'total')
  local hold = tonumber(raw[1]) or 0
  if hold > 0 and (raw[2] == '1' or raw[3] == '1') then
    redis.call('ZADD', K.ghosts .. lane, now + hold, key)
  end
end

-- Take a lease back from a process that died, or from one that an older truth had it; its key is
-- worked on again.
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
