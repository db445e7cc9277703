-- Functions shared by all scripts. In front of this file: `K` (names of keys, from names.py),
-- CALL_KINDS (kinds whose keys call the driver), TRAILED (kinds with a trail) and APART (part of
-- the name of a kind's Celery list), from kinds.py.
-- Every script's first argument is the time in ms, "" outside of tests: then Redis is asked.
local FIRST_PER_RETRY = 5      -- retries weigh 1/5 of first attempts, however many tenants (G12)
local FIFO_STEP = 0.000001     -- later arrivals of equal virtual time come later
local MAX_TICKETS = 500        -- per script call; the sweep admits the rest
local TRAIL_NOTES = 40         -- kept of each key's trail
local TRAIL_SECONDS = 3600
local LOOK_AHEAD_SECONDS = 0.25 -- the next sweep's share of a rate; `pace` keeps the exact time
local PAUSE_KINDS = { 'operator', 'breaker', 'lease' }
local RESERVED_MS = 2000       -- a woken exclusive waiter goes before new shared holders so long
local KIND_TURN = {}
for turn, kind in ipairs(CALL_KINDS) do KIND_TURN[kind] = turn end

local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now = clock()
local tickets = {}

-- The epoch, 'random:birth_ms:run_id', if it is that of this run of Redis: a restart and a fail-over
-- end a life as the loss of all data does, for each may have lost what was acknowledged.
local function life()
  local epoch = redis.call('GET', K.epoch)
  local run = epoch and string.match(epoch, ':(%w+)$')
  if run and run == string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then return epoch end
  return nil
end

-- Nothing is admitted for one TTL of a life whose processes held leases in an earlier one: they
-- restore them meanwhile.
local function is_quiet() return now < (tonumber(redis.call('GET', K.quiet)) or 0) end

local function quiet_until(ms)
  local quiet = math.max(ms, tonumber(redis.call('GET', K.quiet)) or 0)
  redis.call('SET', K.quiet, string.format('%d', quiet))
end

-- The present life's epoch; begins one when there is none. `known` is the newest epoch the caller
-- has heard of, '' for none.
local function begin_life(candidate, known, ttl)
  local epoch = life()
  if not epoch then
    local old = redis.call('GET', K.epoch)
    local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
    epoch = string.format('%s:%d:%s', candidate, now, run)
    redis.call('SET', K.epoch, epoch)
    redis.call('SET', K.patience, string.format('%d', now + ttl))
    -- After an orderly end of all processes nobody has anything to restore.
    local is_used = redis.call('EXISTS', K.leases) == 1
      or redis.call('ZCOUNT', K.procs, now - 60000, '+inf') > 0
    if old and is_used then quiet_until(now + ttl) end
    -- Higher than every fence of the earlier life, of which the last may be lost.
    local fence = math.max(now, tonumber(redis.call('GET', K.fence)) or 0)
    redis.call('SET', K.fence, string.format('%d', fence))
  end
  if known ~= '' and known ~= epoch then
    quiet_until(tonumber(string.match(epoch, ':(%d+):')) + ttl)
  end
  return epoch
end

local function lane_of(key)
  return string.match(key, '^([^|]*|[^|]*)|') or key
end

-- The namespace: 'namespace/name' is the object, or the last field is '@namespace'.
local function tenant_of(key)
  local object, last = string.match(key, '^[^|]*|[^|]*|([^|]*)|?(.*)')
  return string.match(object or '', '^([^/]*)/') or string.match(last or '', '^@(.*)') or ''
end

-- The Celery list with the tickets of a lane, as `place_of` in kinds.py has it.
local function celery_of(lane)
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  if driver == '' then return K.celery .. 'system-' .. kind end
  return K.celery .. (driver or '') .. (APART[kind] or '')
end

-- What happened to an object, for `csi-fleet explain`: the newest notes, 'ms event detail'.
-- Keys of one object in several lanes (node deployment) share a trail.
local function trail(key, ...)
  local kind, object = string.match(key, '^([^|]*)|[^|]*|(.*)$')
  if not TRAILED[kind] then return end
  local notes = K.trail .. kind .. '|' .. object
  redis.call('RPUSH', notes, ...)
  redis.call('LTRIM', notes, -TRAIL_NOTES, -1)
  redis.call('EXPIRE', notes, TRAIL_SECONDS)
end

local function stamped(event) return string.format('%d %s', now, event) end

-- The notes of a pass, ARGV[first] on as 'age_ms text', then how its lease ended.
local function trail_pass(key, first, ending)
  local notes = {}
  for i = first, math.min(#ARGV, first + TRAIL_NOTES) do
    local age, text = string.match(ARGV[i], '^(%d+) (.*)$')
    if age then notes[#notes + 1] = string.format('%d %s', now - age, text) end
  end
  notes[#notes + 1] = stamped(ending)
  trail(key, unpack(notes))
end

-- Lease of a key as a table, nil when there is none. An unreadable one is dropped: the lease check
-- of the sweep then puts its key back.
local function lease_of(key)
  local raw = redis.call('HGET', K.leases, key)
  if not raw then return nil end
  local fence, process, token, started, rest =
    string.match(raw, '^(%d+) (%S+) (%S+) (%d+) ?(.*)$')
  if not fence then
    redis.call('HSET', K.quarantine, K.leases .. ' ' .. key, raw)
    redis.call('EXPIRE', K.quarantine, 604800)
    redis.call('HDEL', K.leases, key)
    return nil
  end
  local locks = {}
  for lock in string.gmatch(rest, '%S+') do locks[#locks + 1] = lock end
  return { fence = fence, process = process, token = token, started = started, locks = locks }
end

local function write_lease(key, lease)
  redis.call('HSET', K.leases, key, table.concat(
    { lease.fence, lease.process, lease.token, lease.started, unpack(lease.locks) }, ' '))
end

local function is_paused(lane)
  for _, kind in ipairs(PAUSE_KINDS) do
    local value = redis.call('HGET', K.paused, kind .. ' ' .. lane)
    local until_ms = value and tonumber(string.match(value, '^(%d+) '))
    if until_ms and (until_ms == 0 or until_ms > now) then return true end
  end
  return false
end

-- Start-time fair queueing: a tenant's n-th waiting key gets virtual time n, so tenants take turns.
-- `front` keys were admitted before and do not pay again.
local function push(key, lane, front)
  local is_retry = redis.call('HEXISTS', K.fails, key) == 1
  local ready = (is_retry and K.retry or K.ready) .. lane
  local share = (is_retry and K.share_retry or K.share) .. lane
  local virtual = tonumber(redis.call('HGET', share, 'v')) or 0
  local score = virtual
  if not front then
    local tenant = 't:' .. tenant_of(key)
    local start = math.max(virtual, tonumber(redis.call('HGET', share, tenant)) or 0)
    local arrival = (tonumber(redis.call('HGET', share, 'n')) or 0) + 1
    redis.call('HSET', share, tenant, string.format('%.17g', start + 1), 'n', arrival)
    score = start + arrival * FIFO_STEP
  end
  redis.call('ZADD', ready, string.format('%.17g', score), key)
  redis.call('HSETNX', K.since, key, now)
  redis.call('SADD', K.lanes, lane)
  trail(key, stamped(is_retry and 'queued retry' or 'queued'))
end

-- One key from a ready set, nil when empty; an empty set forgets its virtual times.
local function pop(ready, share)
  local popped = redis.call('ZPOPMIN', ready)
  if not popped[1] then return nil end
  if redis.call('EXISTS', ready) == 1 then
    local virtual = tonumber(redis.call('HGET', share, 'v')) or 0
    redis.call('HSET', share, 'v', string.format('%.17g', math.max(virtual, popped[2])))
  else
    redis.call('DEL', share)
  end
  return popped[1]
end

-- Tokens in the lane's bucket now; math.huge without a rate.
local function bucket(rate, burst, tokens, at)
  if not rate or rate <= 0 then return math.huge end
  burst = math.max(burst or 1, 1)
  if not tokens or not at then return burst end
  return math.min(burst, tokens + math.max(0, now - at) * rate / 1000)
end

-- The lane's concurrency now: as declared, or less after throttling answers and outages. A lowered
-- one grows by itself, `cap_gain` per `cap_step` ms; a step of 0 holds it.
local function effective(concurrency, cap, at, step, gain)
  if not concurrency or not cap then return concurrency end
  if step and step > 0 then cap = cap + math.floor(math.max(0, now - at) / step) * gain end
  return math.max(1, math.min(concurrency, cap))
end

local function lower(lane, cap, step, gain)
  redis.call('HSET', K.limits .. lane, 'cap', cap, 'cap_at', now, 'cap_step', step, 'cap_gain', gain)
end

-- Calls of dead processes count too, where a second call at once is forbidden (`hold`).
local function busy(lane)
  return redis.call('ZCARD', K.ticketed .. lane) + redis.call('ZCARD', K.leased .. lane)
    + redis.call('ZCOUNT', K.ghosts .. lane, '(' .. now, '+inf')
end

-- A lease of a lane with a rate begins: its token goes now, not at admission, so that tickets that
-- were not fetched for a while are no burst. Admission looks ahead, so there may be a debt.
local function charge(lane)
  local limits = K.limits .. lane
  local raw = redis.call('HMGET', limits, 'rate', 'burst', 'tokens', 'at')
  local tokens = bucket(tonumber(raw[1]), tonumber(raw[2]), tonumber(raw[3]), tonumber(raw[4]))
  if tokens ~= math.huge then
    redis.call('HSET', limits, 'tokens', string.format('%.17g', tokens - 1), 'at', now)
  end
end

-- Ticket keys of a lane while its limits allow; the caller must publish `tickets`. With a limit
-- over all calls of the driver (`total`) the kinds take turns, beginning with the next one.
local function admit(lane, is_turn)
  local limits = K.limits .. lane
  local raw = redis.call('HMGET', limits, 'concurrency', 'rate', 'burst', 'tokens', 'at', 'streak',
    'total', 'cap', 'cap_at', 'cap_step', 'cap_gain')
  local concurrency, rate, streak = tonumber(raw[1]), tonumber(raw[2]), tonumber(raw[6]) or 0
  if not concurrency then return end
  local total = tonumber(raw[7]) or 0
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  if total > 0 and not is_turn and KIND_TURN[kind] then
    for turn = 1, #CALL_KINDS do
      local next_kind = CALL_KINDS[(KIND_TURN[kind] + turn - 1) % #CALL_KINDS + 1]
      admit(next_kind .. '|' .. driver, true)
    end
    return
  end
  local ready, retry = K.ready .. lane, K.retry .. lane
  local waiting_first, waiting_retry = redis.call('ZCARD', ready), redis.call('ZCARD', retry)
  if waiting_first + waiting_retry == 0 or is_paused(lane) or is_quiet() then return end
  concurrency = effective(concurrency, tonumber(raw[8]), tonumber(raw[9]), tonumber(raw[10]),
    tonumber(raw[11]))
  local free = concurrency - busy(lane)
  if total > 0 and KIND_TURN[kind] then
    local all = 0
    for _, other in ipairs(CALL_KINDS) do all = all + busy(other .. '|' .. driver) end
    free = math.min(free, total - all)
  end
  local tokens = bucket(rate, tonumber(raw[3]), tonumber(raw[4]), tonumber(raw[5]))
  if tokens ~= math.huge then
    tokens = tokens + rate * LOOK_AHEAD_SECONDS - redis.call('ZCARD', K.ticketed .. lane)
  end
  local admitted = 0
  while free > admitted and tokens >= 1 and #tickets < MAX_TICKETS do
    local key
    if waiting_retry > 0 and (streak >= FIRST_PER_RETRY or waiting_first == 0) then
      key, streak = pop(retry, K.share_retry .. lane), 0
      waiting_retry = waiting_retry - 1
    else
      key, streak = pop(ready, K.share .. lane), math.min(streak + 1, FIRST_PER_RETRY)
      waiting_first = waiting_first - 1
    end
    if not key then break end
    if string.match(key, '^[^|]+|[^|]*|[^|]*|[^|]*$') then
      redis.call('ZADD', K.ticketed .. lane, now, key)
      admitted = admitted + 1
    else -- no worker could read it: reported once by the caller, and gone
      redis.call('HDEL', K.since, key)
    end
    tickets[#tickets + 1] = key
    tokens = tokens - 1
  end
  if admitted > 0 then redis.call('HSET', limits, 'streak', streak) end
end

local function is_waiting(key, lane)
  return redis.call('ZSCORE', K.ready .. lane, key)
    or redis.call('ZSCORE', K.retry .. lane, key)
    or redis.call('ZSCORE', K.ticketed .. lane, key)
    or redis.call('HEXISTS', K.blocked, key) == 1
end

-- client-go's Add: running -> dirty, waiting -> nothing, else ready. Returns true when made ready.
local function enqueue(key, lane, front)
  if redis.call('HEXISTS', K.leases, key) == 1 then
    redis.call('SADD', K.dirty, key)
    return false
  end
  if is_waiting(key, lane) then return false end
  push(key, lane, front)
  return true
end

local function delay(key, due)
  local old = redis.call('ZSCORE', K.delayed, key)
  if not old or tonumber(old) > due then redis.call('ZADD', K.delayed, due, key) end
end

-- A lock is spelled 'x:name' (exclusive) or 's:name' (shared).
local function mode_and_name(lock) return string.sub(lock, 1, 1), string.sub(lock, 3) end

-- Another key that holds a lock against `key`, nil for none. Shared holders stand side by side.
local function holder_against(key, lock)
  local mode, name = mode_and_name(lock)
  local prefix = name .. '\0'
  local from = mode == 's' and prefix .. 'x' or prefix
  for _, member in ipairs(redis.call('ZRANGEBYLEX', K.holders, '[' .. from, '(' .. name .. '\1')) do
    local holder = string.sub(member, #prefix + 2)
    if holder ~= key then
      if redis.call('HEXISTS', K.leases, holder) == 1 then return holder end
      redis.call('ZREM', K.holders, member) -- its lease record was lost
    end
  end
  return nil
end

-- The key that keeps `key` from a lock, nil when it is free for it: a holder, or an exclusive waiter
-- that comes before new shared holders.
local function rival(key, lock)
  local holder = holder_against(key, lock)
  if holder then return holder end
  local mode, name = mode_and_name(lock)
  local first = mode == 's' and redis.call('HGET', K.reserved, name)
  if first then
    local until_ms, waiter = string.match(first, '^(%d+) (.*)$')
    local is_first = until_ms == '0' and redis.call('HGET', K.blocked, waiter) == 'x:' .. name
    if waiter ~= key and (is_first or tonumber(until_ms) > now) then return waiter end
    redis.call('HDEL', K.reserved, name)
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
  local first = mode == 'x' and redis.call('HGET', K.reserved, name)
  if first and string.match(first, ' (.*)$') == key then redis.call('HDEL', K.reserved, name) end
end

-- `key` waits for a lock; it occupies no slot meanwhile.
local function park(key, lock, holder)
  local mode, name = mode_and_name(lock)
  redis.call('HSET', K.blocked, key, lock)
  redis.call('HSETNX', K.since, key, now)
  redis.call('ZADD', K.waiters, 0, name .. '\0' .. key)
  if mode == 'x' then
    local until_ms, first = string.match(redis.call('HGET', K.reserved, name) or '', '^(%d+) (.*)$')
    local is_over = until_ms and until_ms ~= '0' and tonumber(until_ms) <= now
    if not first or first == key or is_over then
      redis.call('HSET', K.reserved, name, '0 ' .. key)
    end
  end
  trail(key, stamped('blocked ' .. holder))
end

-- Make the waiters of a lock ready. Those who still find it busy wait again.
local function wake(name)
  local prefix = name .. '\0'
  local waiters = redis.call('ZRANGEBYLEX', K.waiters, '[' .. prefix, '(' .. name .. '\1')
  if #waiters == 0 then return end
  local first = string.match(redis.call('HGET', K.reserved, name) or '', '^0 (.*)$')
  if first then
    redis.call('HSET', K.reserved, name, string.format('%d %s', now + RESERVED_MS, first))
  end
  for _, member in ipairs(waiters) do
    local waiter = string.sub(member, #prefix + 1)
    redis.call('ZREM', K.waiters, member)
    redis.call('HDEL', K.blocked, waiter)
    local lane = lane_of(waiter)
    if enqueue(waiter, lane, true) then admit(lane) end
  end
end

local function free(key, lock)
  local mode, name = mode_and_name(lock)
  redis.call('ZREM', K.holders, name .. '\0' .. mode .. key)
  local others = { '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1 }
  if #redis.call('ZRANGEBYLEX', K.holders, unpack(others)) == 0 then wake(name) end
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
-- The caller puts the key where it belongs, frees the locks and then admits its lane.
local function unlease(key, lane, known)
  redis.call('HDEL', K.leases, key)
  redis.call('ZREM', K.leased .. lane, key)
  local event = redis.call('HGET', K.news, key)
  if event then
    redis.call('HDEL', K.news, key)
    if (known or '') == '' or is_newer(event, known) then redis.call('SADD', K.dirty, key) end
  end
  return redis.call('SREM', K.dirty, key) == 1
end

-- Owner check. Returns the lease, or nil and whether this is the repeat of a call that ended it: a
-- lease of this life that was not taken back was ended by its owner.
local function owned(key, process, token, epoch)
  local lease = lease_of(key)
  if lease and lease.process == process and lease.token == token then return lease, true end
  local is_ended = redis.call('GET', K.epoch) == epoch and not redis.call('ZSCORE', K.lost, token)
  return nil, is_ended
end

local function forget(key)
  redis.call('HDEL', K.fails, key)
  redis.call('HDEL', K.memos, key)
  redis.call('ZREM', K.abandoned, key)
end

-- A driver that allows one call at a time may still be at the one of a dead process, until that
-- call's deadline: nobody else begins one before.
local function haunt(key, lane)
  local raw = redis.call('HMGET', K.limits .. lane, 'hold', 'concurrency', 'total')
  local hold = tonumber(raw[1]) or 0
  if hold > 0 and (raw[2] == '1' or raw[3] == '1') then
    redis.call('ZADD', K.ghosts .. lane, now + hold, key)
    redis.call('PEXPIRE', K.ghosts .. lane, hold)
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
  admit(lane)
end
