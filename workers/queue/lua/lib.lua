-- The functions that all scripts share. This file is preceded by `K` (the names of the keys, from
-- names.py) and, from kinds.py, by KINDS (all kinds, in the order of turns), CALL_KINDS (the kinds
-- whose keys call the driver), TRAILED (the kinds that have a trail) and APART (a part of the name
-- of a kind's Celery list).
-- This file is run once, when the library is loaded and no global is known yet.
-- The first argument of every script is the time in ms, or "" outside of tests: the clock below is
-- then used.
local FIRST_PER_RETRY = 5      -- retries weigh 1/5 of first attempts, for any number of tenants (G12)
local FIFO_STEP = 0.000001     -- added per arrival, so that keys with equal virtual times stay in order
local WOKEN_MS = 2000          -- a wake-up that is not answered within this time is lost
local HELD_MS = 2000           -- how long a driver's next call is kept for a kind whose turn it is
local MOST_HELD_MS = 30000     -- the same for a kind whose workers came too late for the call before
local TRAIL_NOTES = 40         -- number of notes that are kept in each key's trail
local TRAIL_SECONDS = 3600
local TIGHT_SHARE = 0.6        -- beyond this share of Redis' memory in use, no trails are written
local FULL_SHARE = 0.9         -- beyond this share, no new work is accepted; the rest is for finishing work
local CROWDED_SHARE = 0.95     -- beyond this share, no new record is accepted; the rest is for Celery's lists
local TIGHT_MS = 60000
local LOOK_MS = 1000
local LOOK_AHEAD_SECONDS = 0.25 -- a take may use the rate of this much future; `pace` is exact
local FRESH_MS = 30000         -- how long a watcher's report that it follows a kind of the catalog is valid
local GAP_MS = 1000            -- if no script runs for longer, the queue's clock does not count the excess
local CLOCK_MS = 250           -- how often the clock is written
local KEPT_MS = 604800000      -- for cleaning up only: Redis expires unused keys by its host's clock
local CALLS_DRIVER = {}
for i = 1, #CALL_KINDS do CALLS_DRIVER[CALL_KINDS[i]] = true end

local MOST = 9e15              -- beyond it, Lua's numbers are not exact, and some cannot be stored

-- Parse a number that may have been written by another program. The result is never infinite; it is
-- nil if the text is not a number.
local function parse(text) return tonumber(text) end
local function tonumber(text)
  local number = parse(text)
  if not number or number ~= number then return nil end
  return math.max(-MOST, math.min(MOST, number))
end

-- The state of this call: the queue's time and the Redis host's time, both in ms; the Celery lists
-- to which the caller must send one message each (and the members that `drop` found); and the list
-- whose next key the caller itself takes.
local now, host_now, lists, own_list

-- The queue's clock, with which everything that is stored here is stamped and compared. It runs at
-- the rate of the Redis host's clock, and only forward. Setting the host's clock, or promoting a
-- replica on another host, changes nothing here except the difference between the two clocks. An
-- apparent leap forward may just be time in which no process was there to call, so it must not end
-- anybody's time. K.clock contains 'ms difference' and is at most 250 ms old; this run of Redis
-- remembers the exact time.
local clock_ms, difference = nil, 0

local function read_clock()
  local kept, kept_difference =
    string.match(redis.call('GET', K.clock) or '', '^(%d+) (-?%d+)$')
  kept = tonumber(kept)
  if kept then
    difference = tonumber(kept_difference)
    -- The time was stored by an earlier run or a master, whose clock may have been ahead of it by
    -- up to the interval between two writes.
    if not clock_ms or clock_ms > kept + CLOCK_MS then clock_ms = kept + CLOCK_MS end
    clock_ms = math.max(clock_ms, kept)
  end
  local time = host_now + difference
  clock_ms = clock_ms or time
  local is_stepped = time < clock_ms or time > clock_ms + GAP_MS
  if is_stepped then
    time = math.max(clock_ms, math.min(time, clock_ms + GAP_MS))
    difference = time - host_now
  end
  clock_ms = time
  if is_stepped or not kept or time - kept >= CLOCK_MS then
    redis.call('SET', K.clock, string.format('%d %d', time, difference))
  end
  return time
end

local function begin_call()
  lists, own_list = {}, nil
  now = tonumber(ARGV[1])
  host_now = now
  if now then return end
  local t = redis.call('TIME')
  host_now = t[1] * 1000 + math.floor(t[2] / 1000)
  now = read_clock()
end

-- Return true if no period with that name is running. The first caller then begins the next period.
local function begins_period(name, period_ms)
  if period_ms <= 0 then return true end
  local mark = K.period .. name
  if (tonumber(redis.call('GET', mark)) or 0) > now then return false end
  redis.call('SET', mark, string.format('%d', now + period_ms), 'PX', string.format('%d', period_ms))
  return true
end

-- The name of this run of Redis, which changes at each start. Each run creates its library again,
-- even from a file or a master, so a value that is remembered here never comes from another run.
local run_id
local function this_run()
  run_id = run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  return run_id
end

-- Return the epoch, 'random:birth_ms:run_id', if it belongs to this run of Redis, otherwise nil. A
-- restart or a fail-over ends a life as a loss of all data does, because each of them may have lost
-- acknowledged writes. The second result is the stored epoch, whichever life it belongs to.
local function life()
  local epoch = redis.call('GET', K.epoch)
  if epoch and string.match(epoch, ':(%w+)$') == this_run() then return epoch, epoch end
  return nil, epoch
end

-- No key is taken during the first TTL of a life if processes held leases in an earlier life: they
-- restore these leases meanwhile.
local function is_quiet() return now < (tonumber(redis.call('GET', K.quiet)) or 0) end

local function quiet_until(ms)
  local quiet = math.max(ms, tonumber(redis.call('GET', K.quiet)) or 0)
  redis.call('SET', K.quiet, string.format('%d', quiet))
end

-- Return the epoch of the current life; begin a life if there is none. `known` is the newest epoch
-- that the caller knows, '' for none.
local function begin_life(candidate, known, ttl)
  local epoch, old = life()
  if not epoch then
    epoch = string.format('%s:%d:%s', candidate, now, this_run())
    redis.call('SET', K.epoch, epoch)
    -- If all processes ended in an orderly way, nobody has anything to restore.
    local is_used = redis.call('EXISTS', K.leases) == 1
      or redis.call('ZCOUNT', K.procs, now - 60000, '+inf') > 0
    if old and is_used then quiet_until(now + ttl) end
    -- The fence must be higher than every fence of the earlier life, the last of which may be lost.
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

-- Return the driver part of a key, including the node: the keys of its records are named after it.
local function driver_part(key) return string.match(key, '^[^|]*|([^|]*)|') or '' end

-- What a key may contain besides plain ASCII: UTF-8, and the escapes that `Key.text` in keys.py
-- makes.
local SPECIAL = { '%%[01][0-9A-F]', '%%25', '%%7C', '%%7F',
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]',
  '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
  '\244[\128-\143][\128-\191][\128-\191]' }

-- Return true if a member of a lane's set is a key of that lane in its only valid spelling. With a
-- different spelling, a worker would ask for a key that does not exist, and the slot would be lost.
local function is_at_home(key, lane)
  if not string.match(key, '^[^|]+|[^|]*|[^|]*|[^|]*$') or lane_of(key) ~= lane then return false end
  if not string.find(key, '[%z\1-\31%%\127-\255]') then return true end
  -- Replace each match by a blank, so that its neighbours do not form a new sequence.
  for _, pattern in ipairs(SPECIAL) do key = string.gsub(key, pattern, ' ') end
  return not string.find(key, '[%z\1-\31%%\127-\255]')
end

-- Drop a member that does not belong to its lane. The caller of the script logs it once: the text
-- with '|' in front is not a list.
local function drop(member)
  redis.call('HDEL', K.since, member)
  lists[#lists + 1] = '|' .. member
end

-- Return the namespace: it is in the object 'namespace/name', or in the last field '@namespace'.
local function tenant_of(key)
  local object, last = string.match(key, '^[^|]*|[^|]*|([^|]*)|?(.*)')
  return string.match(object or '', '^([^/]*)/') or string.match(last or '', '^@(.*)') or ''
end

-- Return the Celery list whose messages announce a lane's work, as `place_of` in kinds.py names it.
local function celery_of(lane)
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  if driver == '' then return K.celery .. 'system-' .. kind end
  return K.celery .. (driver or '') .. (APART[kind] or '')
end

-- Record what happened to an object, for `csi-fleet explain`: the newest notes, 'ms event detail'.
-- Keys for one object in several lanes (node deployment) share a trail. When memory gets scarce,
-- these notes for people are the first to be left out: one tenant's claims could fill Redis with
-- them (SEC-4).
local function trail(key, ...)
  if (tonumber(redis.call('GET', K.tight)) or 0) > now then return end
  local kind, object = string.match(key, '^([^|]*)|[^|]*|(.*)$')
  if not TRAILED[kind] then return end
  local notes = K.trail .. kind .. '|' .. object
  if redis.call('RPUSH', notes, ...) > TRAIL_NOTES then
    redis.call('LTRIM', notes, -TRAIL_NOTES, -1)
  end
  redis.call('EXPIRE', notes, TRAIL_SECONDS)
end

-- The used share of Redis' memory, which is checked once a second.
local used_share, looked_ms = 0, -MOST

local function look_for_room()
  if math.abs(now - looked_ms) < LOOK_MS then return end
  looked_ms = now
  local memory = redis.call('INFO', 'memory')
  local function bytes(name) return tonumber(string.match(memory, name .. ':(%d+)')) or 0 end
  -- Redis too leaves out the buffers of replicas and of the append-only file when it checks the
  -- limit.
  local used, most = bytes('used_memory') - bytes('mem_not_counted_for_evict'), bytes('maxmemory')
  used_share = most > 0 and used / most or 0
  if used_share > TIGHT_SHARE then
    redis.call('SET', K.tight, string.format('%d', now + TIGHT_MS), 'PX', TIGHT_MS)
  end
end

-- Return the error for a caller that wants to add data to a Redis of which more than a share is
-- used; nil while there is room. Redis' own refusal comes too late: no messages could be sent any
-- more, so nothing would drain.
local function refused(share)
  look_for_room()
  if used_share <= share then return nil end
  return redis.error_reply(string.format('OOM nearly full: %d %% of maxmemory is used; nothing '
    .. 'new is accepted until work ends. Raise maxmemory', used_share * 100))
end

-- Do the same for the record of an attempt, unless it replaces a record: that may be the attempt's
-- end.
local function refused_if_new(hash, field)
  if redis.call('HEXISTS', hash, field) == 1 then return nil end
  return refused(CROWDED_SHARE)
end

-- Stamp an event with the Redis host's clock, so that people can compare it with the API server's
-- times.
local function stamped(event) return string.format('%d %s', host_now, event) end

-- Record the notes of a reconcile, given as 'age_ms text' from ARGV[first] on, and how its lease
-- ended.
local function trail_pass(key, first, ending)
  local notes = {}
  for i = first, math.min(#ARGV, first + TRAIL_NOTES) do
    local age, text = string.match(ARGV[i], '^(%d+) (.*)$')
    if age then notes[#notes + 1] = string.format('%d %s', host_now - age, text) end
  end
  notes[#notes + 1] = stamped(ending)
  trail(key, unpack(notes))
end

-- Return the lease of a key as a table, nil if there is none. An unreadable lease is dropped; the
-- sweep's check of leases then adds its key again.
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

-- Return the driver's own name: in node deployment, a lane contains driver@node.
local function driver_of(lane) return string.match(lane, '^[^|]*|([^@]*)') or '' end

local function is_paused(lane)
  -- Usually nothing is paused.
  if redis.call('EXISTS', K.paused, K.pauses) == 0 then return false end
  local found = redis.call('HMGET', K.paused, 'driver ' .. lane, 'lease ' .. lane)
  found[3] = redis.call('HGET', K.pauses, 'driver ' .. driver_of(lane))
  for _, value in ipairs(found) do
    local until_ms = value and tonumber(string.match(value, '^(%d+) '))
    if until_ms and (until_ms == 0 or until_ms > now) then return true end
  end
  return false
end

-- Start-time fair queueing: a tenant's n-th waiting key gets the virtual time n, so that tenants
-- take turns. `front` keys were taken before and do not pay again.
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

-- Take one key from a ready set, nil if the set is empty. An empty set forgets its virtual times.
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

-- Return how many tokens the lane's bucket now has; math.huge without a rate.
local function bucket(rate, burst, tokens, at)
  if not rate or rate <= 0 then return math.huge end
  burst = math.max(burst or 1, 1)
  if not tokens or not at then return burst end
  return math.min(burst, tokens + math.max(0, now - at) * rate / 1000)
end

-- Return the lane's current concurrency: as declared, or lower after throttling answers. A lowered
-- concurrency recovers by `cap_gain` per `cap_step` ms.
local function effective(concurrency, cap, at, step, gain)
  if not concurrency or not cap then return concurrency end
  if step and step > 0 then cap = cap + math.floor(math.max(0, now - at) / step) * gain end
  return math.max(1, math.min(concurrency, cap))
end

local function lower(lane, cap, step, gain)
  redis.call('HSET', K.limits .. lane, 'cap', cap, 'cap_at', now, 'cap_step', step, 'cap_gain', gain)
end

-- The calls of dead processes also count in lanes where no second call may run at once (`hold`).
local function busy(lane)
  return redis.call('ZCARD', K.leased .. lane)
    + redis.call('ZCOUNT', K.ghosts .. lane, '(' .. now, '+inf')
end

-- Charge a reconcile to the rate of its lane. A take looks ahead, so the bucket may be in debt.
local function charge(lane)
  local limits = K.limits .. lane
  local raw = redis.call('HMGET', limits, 'rate', 'burst', 'tokens', 'at')
  local tokens = bucket(tonumber(raw[1]), tonumber(raw[2]), tonumber(raw[3]), tonumber(raw[4]))
  if tokens ~= math.huge then
    redis.call('HSET', limits, 'tokens', string.format('%.17g', tokens - 1), 'at', now)
  end
end

-- Return the state of a lane if its limits allow one of its waiting keys to be taken now, else nil.
-- `kept` is how many of the driver's remaining calls are kept for the turns of other kinds.
local function open_lane(lane, kept)
  local first, retry = redis.call('ZCARD', K.ready .. lane), redis.call('ZCARD', K.retry .. lane)
  if first + retry == 0 then return nil end
  local raw = redis.call('HMGET', K.limits .. lane, 'concurrency', 'rate', 'burst', 'tokens', 'at',
    'streak', 'total', 'cap', 'cap_at', 'cap_step', 'cap_gain')
  local concurrency, rate, total = tonumber(raw[1]), tonumber(raw[2]), tonumber(raw[7]) or 0
  if not concurrency then return nil end
  local free = effective(concurrency, tonumber(raw[8]), tonumber(raw[9]), tonumber(raw[10]),
    tonumber(raw[11])) - busy(lane)
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  if total > 0 and CALLS_DRIVER[kind] then
    local all = kept or 0
    for _, other in ipairs(CALL_KINDS) do all = all + busy(other .. '|' .. driver) end
    free = math.min(free, total - all)
  end
  if free <= 0 then return nil end
  local tokens = bucket(rate, tonumber(raw[3]), tonumber(raw[4]), tonumber(raw[5]))
  if tokens ~= math.huge and tokens + rate * LOOK_AHEAD_SECONDS < 1 then return nil end
  -- This is checked last, because most lanes with waiting keys are busy.
  if is_paused(lane) or is_quiet() then return nil end
  return { first = first, retry = retry, streak = tonumber(raw[6]) or 0 }
end

-- Send one message to a lane's list if a key of the lane could be taken and no message is on its
-- way.
local function wake_lane(lane)
  local list = celery_of(lane)
  if list == own_list then return end
  local flag = K.woken .. list
  -- The flag ends by the queue's clock, because the Redis host's clock may be set back.
  if (tonumber(redis.call('GET', flag)) or 0) > now or not open_lane(lane) then return end
  redis.call('SET', flag, string.format('%d', now + WOKEN_MS), 'PX', WOKEN_MS)
  -- A message that is waiting in the list means the same, even if no worker fetches it.
  local waiting = redis.pcall('LLEN', list)
  if type(waiting) ~= 'number' or waiting == 0 then lists[#lists + 1] = list end
end

-- Wake a lane whose limits may now allow more, or to which a key was added. If the driver has a
-- limit on all its calls (`total`), the next call may belong to any kind.
local function wake(lane)
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  if CALLS_DRIVER[kind] and (tonumber(redis.call('HGET', K.limits .. lane, 'total')) or 0) > 0 then
    for _, other in ipairs(CALL_KINDS) do wake_lane(other .. '|' .. driver) end
  else
    wake_lane(lane)
  end
end

local function is_waiting(key, lane)
  return redis.call('ZSCORE', K.ready .. lane, key)
    or redis.call('ZSCORE', K.retry .. lane, key)
    or redis.call('HEXISTS', K.blocked, key) == 1
end

-- client-go's Add: a running key becomes dirty, a waiting key is left alone, any other key becomes
-- ready. Returns true if the key was made ready.
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
