#!lua name=csifleet_9638c993f4bb62c7
local ARGV
local K = { epoch = 'csifleet:epoch', quiet = 'csifleet:quiet', procs = 'csifleet:procs', leases = 'csifleet:leases', holders = 'csifleet:holders', blocked = 'csifleet:blocked', waiters = 'csifleet:waiters', dirty = 'csifleet:dirty', news = 'csifleet:news', seen = 'csifleet:seen:', delayed = 'csifleet:delayed', since = 'csifleet:since', lanes = 'csifleet:lanes', ready = 'csifleet:ready:', retry = 'csifleet:retry:', ticketed = 'csifleet:ticketed:', woken = 'csifleet:woken:', turns = 'csifleet:turns', leased = 'csifleet:leased:', lost = 'csifleet:lost', took = 'csifleet:took:', ghosts = 'csifleet:ghosts:', share = 'csifleet:share:', share_retry = 'csifleet:share_retry:', tight = 'csifleet:tight', clock = 'csifleet:clock', fence = 'csifleet:fence', fails = 'csifleet:fails', memos = 'csifleet:memos:', marks = 'csifleet:marks:', abandoned = 'csifleet:abandoned', paused = 'csifleet:paused', pauses = 'csifleet:pauses', pauses_version = 'csifleet:pauses_version', limits = 'csifleet:limits:', declared = 'csifleet:declared', intents = 'csifleet:intents:', unsaved = 'csifleet:unsaved:', held = 'csifleet:held', saved = 'csifleet:saved:', catalog = 'csifleet:catalog:', changes = 'csifleet:changes:', versions = 'csifleet:versions', floors = 'csifleet:floors', complete = 'csifleet:complete', fresh = 'csifleet:fresh', drivers = 'csifleet:drivers', drivers_until = 'csifleet:drivers_until', links = 'csifleet:links:', chosen = 'csifleet:chosen:', installation = 'csifleet:installation', fellows = 'csifleet:fellows:', doubts = 'csifleet:doubts', presence = 'csifleet:presence', capacity = 'csifleet:capacity:', capacity_uids = 'csifleet:capacity_uids:', capacity_obsolete = 'csifleet:capacity_obsolete:', capacity_planned = 'csifleet:capacity_planned:', capacity_turn = 'csifleet:capacity_turn:', period = 'csifleet:period:', trail = 'csifleet:trail:', shadow_open = 'csifleet:shadow_open:', shadow_counts = 'csifleet:shadow_counts:', shadow_notes = 'csifleet:shadow_notes:', shadow_known = 'csifleet:shadow_known:', quarantine = 'csifleet:quarantine', quarantined = 'csifleet:quarantined:', celery = 'drv.' }
local KINDS = { 'claims', 'volumes', 'cloning', 'sweep', 'capacity', 'changes', 'contents', 'group-contents', 'snapshots', 'bindings', 'group-snapshots', 'group-bindings', 'snapshot-sources', 'attachments', 'detachments', 'forced-attachments', 'attach-finalizers', 'reconcile-attachments', 'data-sources', 'health' }
local CALL_KINDS = { 'claims', 'volumes', 'capacity', 'changes', 'contents', 'group-contents', 'attachments', 'detachments', 'health' }
local TRAILED = { ['claims'] = true, ['volumes'] = true, ['changes'] = true, ['contents'] = true, ['group-contents'] = true, ['snapshots'] = true, ['bindings'] = true, ['group-snapshots'] = true, ['group-bindings'] = true, ['attachments'] = true, ['detachments'] = true, ['forced-attachments'] = true, ['data-sources'] = true, ['health'] = true }
local APART = { ['changes'] = '#resizer', ['contents'] = '#snapshotter', ['group-contents'] = '#snapshotter', ['snapshots'] = '#snapshot-controller', ['bindings'] = '#snapshot-controller', ['group-snapshots'] = '#snapshot-controller', ['group-bindings'] = '#snapshot-controller', ['snapshot-sources'] = '#snapshot-controller', ['attachments'] = '#attacher', ['detachments'] = '#attacher', ['forced-attachments'] = '#attacher', ['attach-finalizers'] = '#attacher', ['reconcile-attachments'] = '#attacher', ['data-sources'] = '#data-source-validator', ['health'] = '#health' }
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
-- Taking keys: functions that all scripts share, loaded after lib_leases.lua.

-- Return the name of a claim's record, as `Key.record_name` in keys.py does; nil for other kinds.
local function record_name(key)
  local driver, uid = string.match(key, '^claims|([^|]*)|[^|]*|([^|]*)$')
  local node = driver and string.match(driver, '@(.+)$')
  return driver and 'pvc-' .. uid .. (node and '@' .. node or '')
end

-- Return the state that is sent with a lease, see TAKE.
local function state_of(key, lease)
  local epoch = redis.call('GET', K.epoch) or ''
  local complete, flat = {}, redis.call('HGETALL', K.complete)
  for i = 1, #flat, 2 do
    if flat[i + 1] == epoch then complete[#complete + 1] = flat[i] end
  end
  local intent, unsaved, saved, name, driver = false, false, 0, record_name(key), driver_part(key)
  if name then
    intent = redis.call('HGET', K.intents .. driver, name)
    unsaved = redis.call('HGET', K.unsaved .. driver, name)
    saved = redis.call('EXISTS', K.saved .. driver .. '|' .. name)
  end
  local waited = now - (tonumber(redis.call('HGET', K.since, key)) or now)
  return { key, lease.fence, lease.started, redis.call('HGET', K.fails, key) or '0',
    redis.call('HGET', K.memos .. driver, key) or '', redis.call('HGET', K.marks .. driver, key) or '',
    string.format('%d', math.max(0, waited)), epoch,
    redis.call('HGETALL', K.versions), complete, newest_seen(key) or '', intent, unsaved, saved }
end

-- Take the next key of an open lane: first attempts in the order of their tenants' turns, and one
-- retry after every five of them or if there are none. nil if the lane had only invalid members
-- left.
local function pop_next(lane, open)
  local key
  repeat
    local is_retry = open.retry > 0 and (open.streak >= FIRST_PER_RETRY or open.first == 0)
    if is_retry then
      key, open.streak = pop(K.retry .. lane, K.share_retry .. lane), 0
      open.retry = open.retry - 1
    elseif open.first > 0 then
      key, open.streak = pop(K.ready .. lane, K.share .. lane), math.min(open.streak + 1, FIRST_PER_RETRY)
      open.first = open.first - 1
    else
      return nil
    end
    if key and not is_at_home(key, lane) then
      drop(key)
      key = nil
    end
  until key
  redis.call('HSET', K.limits .. lane, 'streak', open.streak)
  return key
end

-- Return since when and for how long a driver's next call is kept for a lane whose turn it is. The
-- time is 0 if the lane's workers have asked since, so that the next refusal to others begins it.
local function turn_of(lane)
  local since, hold = string.match(redis.call('HGET', K.turns, lane) or '', '^(%d+) (%d+)$')
  since, hold = tonumber(since) or 0, math.min(tonumber(hold) or HELD_MS, MOST_HELD_MS)
  return since <= now and since or 0, hold
end

local function keep_turn(lane, since, hold)
  redis.call('HSET', K.turns, lane, string.format('%d %d', since, hold))
end

-- Return true if the next call of a driver is kept for a lane whose turn it is. Its workers were
-- woken when the call was first refused to others, and may be gone: after some time the turn
-- passes, until workers of the lane ask again.
local function is_held(lane)
  local since, hold = turn_of(lane)
  if since == 0 then keep_turn(lane, now, hold) end
  return since == 0 or now - since <= hold
end

-- Workers of a lane ask for a key. If they come too late for a call that was kept for them, the
-- next call is kept for longer: otherwise busy workers would come too late each time.
local function asks(lane)
  local since, hold = turn_of(lane)
  if since == 0 then return end
  if now - since > hold then hold = math.min(2 * (now - since), MOST_HELD_MS) end
  keep_turn(lane, 0, hold)
end

-- For a driver with a limit on all its calls (`total`), return by a kind's number how many calls
-- are kept for kinds with an earlier turn that the caller does not handle. Only keys that call the
-- driver move these turns: other keys need no call, so a stream of them must not pass a turn over.
local function kept_calls(driver, wanted)
  local last = math.floor(tonumber(redis.call('HGET', K.turns, driver)) or 0)
  local kept, count = {}, 0
  for turn = 1, #KINDS do
    local number = (last + turn - 1) % #KINDS + 1
    local kind = KINDS[number]
    local lane = kind .. '|' .. driver
    kept[number] = count
    if wanted[kind] then
      asks(lane)
    elseif CALLS_DRIVER[kind] and open_lane(lane, count) and is_held(lane) then
      count = count + 1
      wake_lane(lane)
    end
  end
  return kept
end

-- Take the next key of a driver's kinds (a set), and return it with its lane. The kinds of a list
-- take turns; with a limit on all calls of the driver, all kinds that call it take turns too.
local function next_key(driver, wanted, any)
  local has_total = (tonumber(redis.call('HGET', K.limits .. any .. '|' .. driver, 'total')) or 0) > 0
  local kept = has_total and kept_calls(driver, wanted) or {}
  local list = celery_of(any .. '|' .. driver)
  local last = math.floor(tonumber(redis.call('HGET', K.turns, list)) or 0)
  for turn = 1, #KINDS do
    local number = (last + turn - 1) % #KINDS + 1
    local kind = KINDS[number]
    if wanted[kind] then
      local lane = kind .. '|' .. driver
      local open = open_lane(lane, kept[number])
      local key = open and pop_next(lane, open)
      if key then
        redis.call('HSET', K.turns, list, number)
        if has_total and CALLS_DRIVER[kind] then
          redis.call('HSET', K.turns, driver, number)
          redis.call('HDEL', K.turns, lane)
        end
        return key, lane
      end
    end
  end
  return nil
end

local function new_fence()
  local fence = redis.pcall('INCR', K.fence)
  if type(fence) ~= 'number' or fence <= 1 then
    fence = now
    redis.call('SET', K.fence, string.format('%d', fence))
  end
  return string.format('%d', fence)
end
local scripts = {}
scripts['acquire'] = function()
-- ACQUIRE(key, process, token, epoch, lock...): take all these locks for the lease, or none.
-- Repeatable.
-- Touches leases, holders. Returns 0 = all are held, n = the n-th is busy, -1 = the lease is lost.
local key = ARGV[2]
local lease = owned(key, ARGV[3], ARGV[4], ARGV[5])
if not lease then return -1 end
for i = 6, #ARGV do
  if holder_against(key, ARGV[i]) then return i - 5 end
end
for i = 6, #ARGV do hold(key, lease, ARGV[i]) end
write_lease(key, lease)
return 0
end
scripts['add'] = function()
local full = refused(FULL_SHARE)
if full then return full end
-- ADD(delay_ms, key...): make keys dirty, at once or after a delay. Idempotent.
-- Touches leases, dirty, ready/retry of the lanes, blocked, delayed, since, share, limits.
-- Returns the lists to wake.
local wait_ms = tonumber(ARGV[2])
local lanes = {}
for i = 3, #ARGV do
  local key = ARGV[i]
  if wait_ms > 0 then
    delay(key, now + wait_ms)
  else
    local lane = lane_of(key)
    if enqueue(key, lane, false) then lanes[lane] = true end
  end
end
for lane in pairs(lanes) do wake(lane) end
return lists
end
scripts['add_events'] = function()
local full = refused(FULL_SHARE)
if full then return full end
-- ADD_EVENTS(key, version, ...): make keys dirty, once for each version of their objects.
-- Touches seen:<minute> (hash, 3 min), news, and what ADD touches. Idempotent within a minute.
-- Returns the lists to wake.
local lanes = {}
for i = 2, #ARGV, 2 do
  local key, version = ARGV[i], ARGV[i + 1]
  if is_news(key, version) then
    local lane = lane_of(key)
    if redis.call('HEXISTS', K.leases, key) == 1 then
      redis.call('HSET', K.news, key, version) -- the running reconcile may know it already
    elseif enqueue(key, lane, false) then
      lanes[lane] = true
    end
  end
end
for lane in pairs(lanes) do wake(lane) end
return lists
end
scripts['begin'] = function()
-- BEGIN(driver, domain, record, key, process, token, most, note): write the intent if the process
-- still has the lease. A new intent is written only if its namespace then has at most `most` bytes.
-- Without a key there is no lease to check; an empty `note` leaves the history unchanged.
-- Touches intents of the driver, held, leases (hashes), trail (list).
-- Returns 1 = written, 0 = the lease is lost, 2 = the namespace is full.
local intents, domain, record, key = K.intents .. ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if key ~= '' and not lease_by(key, ARGV[6], ARGV[7]) then return 0 end
local full = refused_if_new(intents, domain)
if full then return full end
if not weigh(intents, domain, record, tonumber(ARGV[8])) then return 2 end
redis.call('HSET', intents, domain, record)
if key ~= '' and ARGV[9] ~= '' then trail(key, stamped(ARGV[9])) end
return 1
end
scripts['block'] = function()
-- BLOCK(key, process, token, epoch, stays, lock, note...): end the lease and let the key wait for a
-- busy lock. If the lock was released meanwhile, the key is ready at once. No counter changes.
-- Returns {lists, 1 = released (now or before), 0 = the lease was lost}.
local key, lane, lease, is_ok = ending()
local lock = ARGV[7]
if lease then
  trail_pass(key, 8, 'released 0')
  unlease(key, lane)
  free_all(key, lease)
  local holder = holder_against(key, lock)
  if holder then
    park(key, lock, holder)
  else
    enqueue(key, lane, true)
  end
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
end
scripts['catalog_complete'] = function()
-- CATALOG_COMPLETE(epoch, kind...): the watcher has written all listed objects in this epoch.
-- Touches epoch (string), complete, fresh (hashes). Returns 1, or 0 if the epoch is over.
if redis.call('GET', K.epoch) ~= ARGV[2] then return 0 end
for i = 3, #ARGV do
  redis.call('HSET', K.complete, ARGV[i], ARGV[2])
  redis.call('HSET', K.fresh, ARGV[i], now + FRESH_MS)
end
return 1
end
scripts['catalog_entry'] = function()
-- CATALOG_ENTRY(kind, name): read one object, for readers that have no copy of the kind.
-- Touches epoch, complete, fresh, catalog:<kind>; writes nothing. Returns {1 = the kind is complete
-- and was watched in the last FRESH_MS, entry}.
local epoch = redis.call('GET', K.epoch)
local is_fresh = (tonumber(redis.call('HGET', K.fresh, ARGV[2])) or 0) > now
local is_complete = epoch and redis.call('HGET', K.complete, ARGV[2]) == epoch and is_fresh
return { is_complete and 1 or 0, redis.call('HGET', K.catalog .. ARGV[2], ARGV[3]) or '' }
end
scripts['catalog_fresh'] = function()
-- CATALOG_FRESH(epoch, kind...): a watcher follows these kinds and has written all events so far.
-- Touches epoch, complete (read), fresh (hash). Returns how many kinds are complete in this epoch.
local count = 0
if redis.call('GET', K.epoch) ~= ARGV[2] then return count end
for i = 3, #ARGV do
  if redis.call('HGET', K.complete, ARGV[i]) == ARGV[2] then
    redis.call('HSET', K.fresh, ARGV[i], now + FRESH_MS)
    count = count + 1
  end
end
return count
end
scripts['catalog_prune'] = function()
-- CATALOG_PRUNE(kind, list rv, name...): drop the named tombstones. A tombstone that is newer than
-- the list is kept, because it rejects events that a slow watcher may still deliver. Readers whose
-- version is older than the newest dropped tombstone read the whole kind again.
-- Touches catalog:<kind> (hash), changes:<kind> (zset), versions, floors (hashes).
local kind = ARGV[2]
local pruned, floor = 0, 0
local newest = tonumber(redis.call('HGET', K.versions, kind)) or 0
for i = 4, #ARGV do
  local entry = redis.call('HGET', K.catalog .. kind, ARGV[i])
  local rv = string.match(entry or '', '^(%d+) $')
  if rv and not is_newer(rv, ARGV[3]) then
    floor = math.max(floor, tonumber(redis.call('ZSCORE', K.changes .. kind, ARGV[i])) or newest)
    redis.call('HDEL', K.catalog .. kind, ARGV[i])
    redis.call('ZREM', K.changes .. kind, ARGV[i])
    pruned = pruned + 1
  end
end
-- A reader with an older version than the newest of them would never learn of the removals from
-- `changes`.
if floor > (tonumber(redis.call('HGET', K.floors, kind)) or 0) then
  redis.call('HSET', K.floors, kind, string.format('%d', floor))
end
return pruned
end
scripts['catalog_put'] = function()
-- CATALOG_PUT(kind, name, rv, json, ...): write objects; the newer resourceVersion wins. An empty
-- json is a tombstone, which also wins at an equal version (a new list without the object, a
-- repeated delete).
-- Touches catalog:<kind> (hash), changes:<kind> (zset), versions (hash). Idempotent.
-- Returns the number of entries that changed.
local kind = ARGV[2]
local entries, changes = K.catalog .. kind, K.changes .. kind

local version = tonumber(redis.call('HGET', K.versions, kind))
-- A lost counter starts from the current time, so that versions of an earlier life are never
-- reused.
if not version then version = now * 1000 end
local changed = 0
for i = 3, #ARGV, 3 do
  local name, rv, json = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local old_rv, old_json = string.match(redis.call('HGET', entries, name) or '', '^(%d+) (.*)$')
  local wins = not old_rv or is_newer(rv, old_rv)
    or (rv == old_rv and json == '' and old_json ~= '')
  if wins and not (json == '' and not old_rv) then
    version, changed = version + 1, changed + 1
    redis.call('HSET', entries, name, rv .. ' ' .. json)
    redis.call('ZADD', changes, string.format('%d', version), name)
  end
end
redis.call('HSET', K.versions, kind, string.format('%d', version))
return changed
end
scripts['catalog_read'] = function()
-- CATALOG_READ(known_epoch, kind, known_version, ...): read the changes since that version, per
-- kind.
-- Touches epoch, complete, versions, floors, catalog:<kind>, changes:<kind>; writes nothing.
-- Returns {epoch, {kind, is complete, version, is full, {name, entry, ...}}...}; entry "" =
-- deleted.
local epoch = redis.call('GET', K.epoch) or ''
local reply = { epoch }
for i = 3, #ARGV, 2 do
  local kind, known = ARGV[i], tonumber(ARGV[i + 1])
  local is_complete = redis.call('HGET', K.complete, kind) == epoch and epoch ~= ''
  local version = tonumber(redis.call('HGET', K.versions, kind)) or 0
  local floor = tonumber(redis.call('HGET', K.floors, kind)) or 0
  local is_full = ARGV[2] ~= epoch or known < floor or known > version
  local flat = {}
  if is_full then
    flat = redis.call('HGETALL', K.catalog .. kind)
  elseif known < version then
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', K.changes .. kind,
        '(' .. string.format('%d', known), '+inf')) do
      flat[#flat + 1] = name
      flat[#flat + 1] = redis.call('HGET', K.catalog .. kind, name) or ''
    end
  end
  reply[#reply + 1] = { kind, is_complete and 1 or 0, string.format('%d', version),
    is_full and 1 or 0, flat }
end
return reply
end
scripts['created'] = function()
-- CREATED(driver, domain, intent, pv, key, process, token): the volume exists; keep its PV until it
-- is saved, if the process still has the lease. Without a key there is no lease to check.
-- Touches intents and unsaved of the driver, held, leases (hashes).
-- Returns 1 = written, 0 = the lease is lost.
local driver, domain, key = ARGV[2], ARGV[3], ARGV[6]
if key ~= '' and not lease_by(key, ARGV[7], ARGV[8]) then return 0 end
weigh(K.intents .. driver, domain, ARGV[4])
redis.call('HSET', K.intents .. driver, domain, ARGV[4])
redis.call('HSET', K.unsaved .. driver, domain, ARGV[5])
return 1
end
scripts['done'] = function()
-- DONE(key, process, token, epoch, stays, volume, known, known_in, note...): forget the failures and
-- release the key. If `volume` is not empty, its intent and unsaved PV are dropped in the same step.
-- Events up to the version `known` need no further reconcile, if the epoch is still `known_in`:
-- etcd may have been restored since, and then it uses lower versions again.
-- Returns {lists, 1 = done (now or before), 0 = the lease was lost}.
local key, lane, lease, is_ok = ending()
if lease then
  forget(key)
  if ARGV[7] ~= '' then
    end_attempt(driver_part(key), ARGV[7])
    redis.call('SET', K.saved .. driver_part(key) .. '|' .. ARGV[7], '1', 'EX', 600)
  end
  trail_pass(key, 10, 'done')
  local known = (redis.call('GET', K.epoch) or '') == ARGV[9] and ARGV[8] or ''
  if unlease(key, lane, known) then enqueue(key, lane, false) end
  if known ~= '' then is_news(key, known) end -- for events that arrive late
  free_all(key, lease)
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
end
scripts['drivers_alive'] = function()
-- DRIVERS_ALIVE(): read the drivers that a worker serves now.
-- Touches drivers, drivers_until; writes nothing. Returns {version, name, record, ...}.
local reply = { redis.call('HGET', K.versions, 'drivers') or '0' }
local alive = redis.call('ZRANGEBYSCORE', K.drivers_until, '(' .. string.format('%d', now), '+inf')
for _, name in ipairs(alive) do
  reply[#reply + 1] = name
  reply[#reply + 1] = redis.call('HGET', K.drivers, name) or '{}'
end
return reply
end
scripts['drivers_keep'] = function()
-- DRIVERS_KEEP(process, ttl_ms, name, record, connected, ...): the process serves these drivers.
-- `connected` is 0 or 1 or, for a driver of which only one replica is called, that replica's
-- address.
-- Touches drivers (hash), drivers_until (zset), links:<driver> (zset), chosen:<driver> (string),
-- versions (hash, field drivers), paused (hash). Idempotent.
-- Returns {1 if the set of drivers or a record changed, connected drivers that count as lost or for
-- which another replica was chosen}.
local process, ttl = ARGV[2], tonumber(ARGV[3])
local changed, lost = false, {}
for i = 4, #ARGV, 3 do
  local name, record = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', K.drivers, name) ~= record then
    redis.call('HSET', K.drivers, name, record)
    changed = true
  end
  redis.call('ZADD', K.drivers_until, now + ttl, name)
  local connected = ARGV[i + 2]
  if connected ~= '0' then
    local driver = string.match(name, '^[^#]*') -- without the controller, see registry.py
    local chosen = connected == '1' and '1'
      or string.match(redis.call('GET', K.chosen .. driver) or '', '%S+$')
    if chosen == connected then
      redis.call('ZADD', K.links .. driver, now + ttl, process)
      redis.call('PEXPIRE', K.links .. driver, KEPT_MS)
    end
    local paused = 'driver ' .. CALL_KINDS[1] .. '|' .. driver
    if chosen ~= connected or redis.call('HEXISTS', K.paused, paused) == 1 then
      lost[#lost + 1] = driver
    end
  end
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', K.drivers_until, '-inf', now)) do
  redis.call('ZREM', K.drivers_until, name)
  redis.call('HDEL', K.drivers, name)
  changed = true
end
if changed then
  local version = tonumber(redis.call('HGET', K.versions, 'drivers')) or now * 1000
  redis.call('HSET', K.versions, 'drivers', string.format('%d', version + 1))
end
return { changed and 1 or 0, lost }
end
scripts['end_history'] = function()
-- END_HISTORY(epoch, kind...): resourceVersions went back, so nothing that depends on them is
-- valid.
-- Touches epoch, complete, fresh, versions, floors, news, seen:<minute>, catalog:<kind> and
-- changes:<kind>: all of them are deleted. Without an epoch, a new life begins, in which processes
-- restore their leases and watchers list everything. Returns 1, or 0 if that epoch is over.
if redis.call('GET', K.epoch) ~= ARGV[2] then return 0 end
redis.call('DEL', K.epoch, K.complete, K.fresh, K.news)
for minute = math.floor(now / 60000) - 4, math.floor(now / 60000) do
  redis.call('DEL', K.seen .. minute)
end
for i = 3, #ARGV do
  redis.call('DEL', K.catalog .. ARGV[i], K.changes .. ARGV[i])
  redis.call('HDEL', K.versions, ARGV[i])
  redis.call('HDEL', K.floors, ARGV[i])
end
return 1
end
scripts['ensure'] = function()
local full = refused(FULL_SHARE)
if full then return full end
-- ENSURE(key...): make those keys ready that are nowhere in the queue. Idempotent.
-- Touches leases, ready/retry of the lanes, blocked, delayed, abandoned, since, share.
-- Returns the lists to wake.
local lanes = {}
for i = 2, #ARGV do
  local key = ARGV[i]
  local lane = lane_of(key)
  local is_held = redis.call('HEXISTS', K.leases, key) == 1 or is_waiting(key, lane)
    or redis.call('ZSCORE', K.delayed, key) or redis.call('ZSCORE', K.abandoned, key)
  if not is_held then
    push(key, lane, false)
    lanes[lane] = true
  end
end
for lane in pairs(lanes) do wake(lane) end
return lists
end
scripts['enter'] = function()
-- ENTER(key, process, token, epoch, lock...): take all locks of a key that TAKE has leased. If a
-- lock is busy, the lease ends and the key waits for the lock; no counter changes. Repeatable.
-- Touches leases, holders, since, limits; for a busy lock also leased, blocked, waiters.
-- Returns {lists, 1}; {lists, 0}: a lock is busy; {lists, -1}: the lease is lost.
local key, lane = ARGV[2], lane_of(ARGV[2])
local lease = owned(key, ARGV[3], ARGV[4], ARGV[5])
if not lease then return { lists, -1 } end
for i = 6, #ARGV do
  local holder = holder_against(key, ARGV[i])
  if holder then
    local since = redis.call('HGET', K.since, key) or now
    unlease(key, lane)
    free_all(key, lease)
    redis.call('HSET', K.since, key, since)
    park(key, ARGV[i], holder)
    wake(lane)
    return { lists, 0 }
  end
end
if redis.call('HDEL', K.since, key) == 1 then -- otherwise the call is a repeated one
  charge(lane)
  trail(key, stamped('taken ' .. lease.process))
end
for i = 6, #ARGV do hold(key, lease, ARGV[i]) end
write_lease(key, lease)
return { lists, 1 }
end
scripts['epoch'] = function()
-- EPOCH(candidate, known, ttl_ms): return the epoch of this Redis' life; the first caller names it.
-- Touches epoch, quiet, fence (strings).
return begin_life(ARGV[2], ARGV[3], tonumber(ARGV[4]))
end
scripts['fail'] = function()
-- FAIL(key, process, token, epoch, stays, base_ms, cap_ms, min_ms, threshold, memo, note...): count
-- a failure, and release the key with a delay. A key that became dirty meanwhile is ready at once.
-- Touches fails, memos, delayed, abandoned.
-- Returns {lists, is owner, fails, delay_ms; -1 = given up}.
local key, lane, lease, is_ok = ending()
local count = tonumber(redis.call('HGET', K.fails, key)) or 0
local wait_ms = 0
if lease then
  local base, cap, threshold = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[10])
  local is_dirty = unlease(key, lane)
  local gives_up = threshold > 0 and count >= threshold
  if gives_up then
    redis.call('ZADD', K.abandoned, now, key)
    redis.call('HSET', K.fails, key, count)
    wait_ms = -1
  else
    wait_ms = math.max(math.min(base * 2 ^ math.min(count, 60), cap), tonumber(ARGV[9]))
    count = count + 1
    redis.call('HSET', K.fails, key, count)
  end
  local memos = K.memos .. driver_part(key)
  if ARGV[11] ~= '' then
    redis.call('HSET', memos, key, ARGV[11])
    redis.call('PEXPIRE', memos, KEPT_MS)
  else
    redis.call('HDEL', memos, key)
  end
  trail_pass(key, 12, string.format('failed %d %d', count, wait_ms))
  if is_dirty then
    enqueue(key, lane, false)
    wait_ms = 0
  elseif not gives_up then
    delay(key, now + wait_ms)
  end
  free_all(key, lease)
  wake(lane)
elseif redis.call('ZSCORE', K.abandoned, key) then
  wait_ms = -1
else
  wait_ms = math.max(0, (tonumber(redis.call('ZSCORE', K.delayed, key) or now)) - now)
end
return { lists, is_ok and 1 or 0, count, wait_ms }
end
scripts['finish'] = function()
-- FINISH(driver, domain, key, process, token): delete the intent and the unsaved PV, unless another
-- process has the lease: the intent would then belong to that process.
-- Touches intents and unsaved of the driver, held, leases. Returns 1 = deleted, 0 = the lease is
-- lost.
if ARGV[4] ~= '' and not lease_by(ARGV[4], ARGV[5], ARGV[6]) then return 0 end
end_attempt(ARGV[2], ARGV[3])
return 1
end
scripts['forget'] = function()
-- FORGET(key...): the objects are gone. Drop their counters, memos, marks and delayed entries, but
-- keep waiting keys.
for i = 2, #ARGV do
  forget(ARGV[i])
  redis.call('HDEL', K.marks .. driver_part(ARGV[i]), ARGV[i])
  redis.call('ZREM', K.delayed, ARGV[i])
end
end
scripts['limits'] = function()
-- LIMITS(lane, concurrency, rate, burst, total, hold_ms, is_new_life): declare limits, then wake
-- the lane. Returns the lists to wake. In a new life, Redis may have forgotten a dead process's
-- call: a driver that takes one call at a time gets no other call before that call's deadline.
-- Touches limits:<lane> (hash), declared, ghosts:<lane> (zsets); the bucket's level is kept.
redis.call('HSET', K.limits .. ARGV[2], 'concurrency', ARGV[3], 'rate', ARGV[4], 'burst', ARGV[5],
  'total', ARGV[6] or 0, 'hold', ARGV[7] or 0)
redis.call('ZADD', K.declared, now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', K.ghosts .. ARGV[2], '-inf', now)
if ARGV[8] == '1' then haunt('new life', ARGV[2]) end
wake(ARGV[2])
return lists
end
scripts['link'] = function()
-- LINK(event, driver, kinds, process, open_ms, longest_ms, ...): record whether any process is
-- connected to a driver, and which of its replicas is called (workers/drivers/replica.py).
--   lost(reason)                  the process has no connection. If it was the last, the driver's lanes
--                                 are paused until a process is back, or until no process repeats `lost`
--   back(ttl_ms, address, serves) the process is connected and knows the driver. `address` names the
--                                 replica; it is "" if any replica of the driver may be called
-- `open_ms`: how long the process's calls may still run; `longest_ms`: the longest time of any
-- call.
-- Touches links:<driver> (zset), chosen:<driver> (string), paused (hash), epoch, all lanes.
-- Returns {lists to wake, 1 if the process may call the driver, ms until then, chosen address}.
local event, driver, kinds, process = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local open, longest = tonumber(ARGV[6]), tonumber(ARGV[7])
local LOST_MS = 15000
local links = K.links .. driver
local begin, calls, chosen =
  string.match(redis.call('GET', K.chosen .. driver) or '', '^(%d+) (%d+) (%S+)$')
begin, calls = tonumber(begin) or 0, tonumber(calls) or 0
local function choose(address)
  chosen = address
  redis.call('SET', K.chosen .. driver, string.format('%d %d %s', begin, calls, address))
end

redis.call('ZREM', links, process)
if chosen then
  -- A process that fell silent can have begun its last call only before its report expired.
  local silent = redis.call('ZRANGE', links, now, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  local last = math.max(calls, now + open, silent and tonumber(silent) + longest or 0)
  if last > calls and last > now then
    calls = last
    choose(chosen)
  end
end
redis.call('ZREMRANGEBYSCORE', links, '-inf', now)

if event == 'back' then
  local ttl, address, serves = tonumber(ARGV[8]), ARGV[9], ARGV[10] == '1'
  if address ~= '' and address ~= chosen then
    local birth = tonumber(string.match(redis.call('GET', K.epoch) or '', ':(%d+):')) or now
    local is_other = chosen and redis.call('ZCARD', links) > 0
    -- A Redis that began its life recently may have forgotten which replica others call. A
    -- connected process reports this within its ttl.
    local is_unsure = not chosen and not serves and now < birth + longest + LOST_MS
    if is_other or is_unsure then return { lists, 0, 0, chosen or '' } end
    begin = math.max(now, calls)
    choose(address)
  end
  redis.call('ZADD', links, now + ttl, process)
  redis.call('PEXPIRE', links, KEPT_MS)
end

local is_lost = redis.call('ZCARD', links) == 0
local until_ms, reason = now + LOST_MS, ARGV[8]
if not is_lost and chosen and begin > now then
  until_ms, reason = begin, 'its replica changed, calls at the old one may still run'
end
for kind in string.gmatch(kinds, '%S+') do
  local lane = kind .. '|' .. driver
  if is_lost or until_ms == begin then
    redis.call('HSET', K.paused, 'driver ' .. lane, string.format('%d %s', until_ms, reason))
  elseif redis.call('HDEL', K.paused, 'driver ' .. lane) == 1 then
    wake(lane)
  end
end
return { lists, 1, math.max(0, begin - now), chosen or '' }
end
scripts['mark'] = function()
-- MARK(key, process, token, epoch, record): replace the key's mark; "" removes it. Repeatable.
-- Touches marks of the key's driver (hash), leases. Returns 1 = written, 0 = the lease is lost.
local key, record = ARGV[2], ARGV[6]
local marks = K.marks .. driver_part(key)
if not owned(key, ARGV[3], ARGV[4], ARGV[5]) then return 0 end
if record == '' then
  redis.call('HDEL', marks, key)
else
  local full = refused_if_new(marks, key)
  if full then return full end
  redis.call('HSET', marks, key, record)
end
return 1
end
scripts['mirror'] = function()
-- MIRROR(version, name, pause, ...): replace the operators' pauses with those of the API server at
-- that resourceVersion, and wake the lists of resumed drivers. A name is 'driver NAME' or 'class
-- NAME'; a pause is 'until_ms reason' by the Redis host's clock. A version older than the known one
-- changes nothing. A pause that was mirrored before keeps the end that it got then, 'end_ms
-- until_ms reason', so that a jump of the host's clock makes it neither longer nor shorter.
-- Touches pauses (hash), pauses_version (string), woken (flags). Idempotent.
-- Returns 1 if the pauses were stored, else 0, and the lists to wake.
local version = ARGV[2]
local known = redis.call('GET', K.pauses_version)
if known and is_newer(known, version) then return { 0 } end
local before, flat = {}, redis.call('HGETALL', K.pauses)
for i = 1, #flat, 2 do before[flat[i]] = flat[i + 1] end
redis.call('DEL', K.pauses)
for i = 3, #ARGV, 2 do
  local name, pause = ARGV[i], ARGV[i + 1]
  local until_ms = tonumber(string.match(pause, '^(%d+) ')) or 0
  local end_ms = until_ms > 0 and math.max(1, now + until_ms - host_now) or 0
  local kept = string.match(before[name] or '', '^%d+ (.*)$') == pause
  redis.call('HSET', K.pauses, name, kept and before[name] or string.format('%d %s', end_ms, pause))
end
-- No race lasts longer than a minute. After a restore of the API server's data, versions start
-- lower.
redis.call('SET', K.pauses_version, version, 'PX', 60000)
local is_resumed = {}
for name in pairs(before) do
  is_resumed[name] = redis.call('HEXISTS', K.pauses, name) == 0 or nil
end
if next(is_resumed) then
  for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
    if is_resumed['driver ' .. driver_of(lane)] then wake_lane(lane) end
  end
end
return { 1, unpack(lists) }
end
scripts['orphan'] = function()
-- ORPHAN(key, (slot, name, record)...): a lost lease ended without an outcome. The records of its
-- attempt are restored unless a newer owner's records are stored, and the key is added again.
-- Touches the driver's slots and everything of the queue. Returns the lists to wake.
local key, lane = ARGV[2], lane_of(ARGV[2])
local driver = driver_part(key)
for i = 3, #ARGV, 3 do redis.call('HSETNX', K[ARGV[i]] .. driver, ARGV[i + 1], ARGV[i + 2]) end
if enqueue(key, lane, false) then wake(lane) end
return lists
end
scripts['pace'] = function()
-- PACE(lane): a call of a lane with a rate is about to begin; reserve its turn among all workers'
-- calls.
-- Touches limits:<lane> (hash). Returns the ms to wait before the call.
local limits = K.limits .. ARGV[2]
local raw = redis.call('HMGET', limits, 'rate', 'burst', 'calls', 'calls_at')
local rate = tonumber(raw[1])
local tokens = bucket(rate, tonumber(raw[2]), tonumber(raw[3]), tonumber(raw[4])) - 1
if tokens == math.huge then return 0 end
redis.call('HSET', limits, 'calls', string.format('%.17g', tokens), 'calls_at', now)
return tokens < 0 and math.ceil(-tokens / rate * 1000) or 0
end
scripts['pause'] = function()
-- PAUSE(kind, span_ms, reason, lane...): admit no key for the span, 0 = until resumed.
-- Touches paused (hash).
local kind, span, reason = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local pause = string.format('%d %s', span > 0 and now + span or 0, reason)
for i = 5, #ARGV do redis.call('HSET', K.paused, kind .. ' ' .. ARGV[i], pause) end
return string.format('%d', now)
end
scripts['period'] = function()
-- PERIOD(name, span_ms): return 1 if the work of a period is due, and then begin the next period;
-- else 0.
-- Touches period:<name> (string: the ms of its end, PX).
return begins_period(ARGV[2], tonumber(ARGV[3])) and 1 or 0
end
scripts['regain'] = function()
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
end
scripts['release'] = function()
-- RELEASE(key, process, token, epoch, stays, delay_ms, count, note...): put the key back without a
-- back-off step.
-- Returns {lists, 1 = released (now or before), 0 = the lease was lost}.
local key, lane, lease, is_ok = ending()
if lease then
  local wait_ms = tonumber(ARGV[7])
  if ARGV[8] == '1' then
    redis.call('HSET', K.fails, key, (tonumber(redis.call('HGET', K.fails, key)) or 0) + 1)
  end
  trail_pass(key, 9, string.format('released %d', wait_ms))
  if unlease(key, lane) or wait_ms <= 0 then
    enqueue(key, lane, true)
  else
    delay(key, now + wait_ms)
  end
  free_all(key, lease)
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
end
scripts['renew'] = function()
-- RENEW(process, epoch, ttl_ms, (key, token)...): renew the leases that the process holds. Leases
-- that it does not name expire: a delayed copy of TAKE may have made a lease that no process knows
-- of.
-- Touches procs, leases, leased, lost.
-- Returns {1 = same life, the time in ms, tokens of lost leases...}; in another life {0}: call
-- REGAIN.
local process, ttl = ARGV[2], tonumber(ARGV[4])
if life() ~= ARGV[3] then return { 0 } end
redis.call('ZADD', K.procs, now + ttl, process)
local reply = { 1, now }
for i = 5, #ARGV, 2 do
  local key, token = ARGV[i], ARGV[i + 1]
  if lease_by(key, process, token) then
    redis.call('ZADD', K.leased .. lane_of(key), now + ttl, key)
  else
    redis.call('ZADD', K.lost, now, token)
    reply[#reply + 1] = token
  end
end
return reply
end
scripts['resume'] = function()
-- RESUME(kind, lane...): end one kind of pause, then wake the lanes.
-- Touches paused (hash). Returns the lists to wake.
local kind = ARGV[2]
for i = 3, #ARGV do
  redis.call('HDEL', K.paused, kind .. ' ' .. ARGV[i])
  wake(ARGV[i])
end
return lists
end
scripts['sweep'] = function()
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
end
scripts['take'] = function()
-- TAKE(process, token, ttl_ms, is_woken, driver, kind...): take the next due key of the driver's
-- kinds, which share a Celery list, under a lease without locks; ENTER follows. `is_woken` is 1 if
-- a message of the list led to this call. A copy of the call, recognised by its token, gets the
-- same lease, or none.
-- Touches leases, ready/retry of the lanes, leased, delayed, fence, took, turns, woken, limits.
-- Returns {status, lists, state}. The status is 'taken', 'none' or 'new life'. The state of a taken
-- key is {key, fence, started_ms, fails, memo, mark, waited_ms, epoch, versions, complete kinds,
-- newest version of its object, intent, unsaved PV, was saved}; only claims have the last three.
local TOOK_MS = 60000 -- longer than the time for which the client repeats a call
local process, token, ttl, driver = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
if not life() then return { 'new life', lists, false } end
local noted = K.took .. token
local took = redis.call('GET', noted)
if took then -- a copy of a call that was repeated or delayed
  local lease = lease_by(took, process, token)
  if lease then return { 'taken', lists, state_of(took, lease) } end
  return { 'none', lists, false }
end
local any, wanted = ARGV[7], {}
for i = 7, #ARGV do wanted[ARGV[i]] = true end
if ARGV[5] == '1' then redis.call('DEL', K.woken .. celery_of(any .. '|' .. driver)) end
local key, lane = next_key(driver, wanted, any)
if not key then return { 'none', lists, false } end
local lease = { fence = new_fence(), process = process, token = token,
  started = string.format('%d', now), locks = {} }
write_lease(key, lease)
redis.call('ZADD', K.leased .. lane, now + ttl, key)
redis.call('ZREM', K.delayed, key)
redis.call('SET', noted, key, 'PX', TOOK_MS)
for kind in pairs(wanted) do wake_lane(kind .. '|' .. driver) end
return { 'taken', lists, state_of(key, lease) }
end
scripts['throttle'] = function()
-- THROTTLE(lane, step_ms, cooldown_ms): halve the lane's concurrency after the driver answered "too
-- much". Within the cool-down, it is not lowered again, because calls that ran together fail
-- together.
-- Touches limits:<lane> (hash). Returns the concurrency that is now in force.
local lane = ARGV[2]
local raw = redis.call('HMGET', K.limits .. lane, 'concurrency', 'cap', 'cap_at', 'cap_step',
  'cap_gain')
local declared, at = tonumber(raw[1]), tonumber(raw[3])
local current = effective(declared, tonumber(raw[2]), at, tonumber(raw[4]), tonumber(raw[5]))
if not declared or (at and now - at < tonumber(ARGV[4])) then return current or 0 end
local cap = math.max(1, math.floor(current / 2))
lower(lane, cap, tonumber(ARGV[3]), math.max(1, math.floor(declared / 50)))
return cap
end
scripts['turn'] = function()
-- TURN(driver, interval_ms, burst): take the next turn to write a capacity object.
-- Touches capacity_turn:<driver> (string: the ms at which the bucket would be full again, PX).
-- Returns the ms to wait for the turn. Turns are in order: each caller waits for its own turn.
local key = K.capacity_turn .. ARGV[2]
local interval, burst = tonumber(ARGV[3]), tonumber(ARGV[4])
local at = math.max(tonumber(redis.call('GET', key)) or now, now)
local full_at = at + interval
redis.call('SET', key, string.format('%.3f', full_at), 'PX', math.ceil(full_at - now))
return math.ceil(math.max(0, at - now - interval * (burst - 1)))
end
scripts['unlock'] = function()
-- UNLOCK(key, process, token, epoch, name): release one lock before the lease ends. Repeatable.
-- Touches leases, holders and the places of the woken waiters.
-- Returns {lists, 1 = the process has the lease, 0 = it is lost}.
local key, name = ARGV[2], ARGV[6]
local lease = owned(key, ARGV[3], ARGV[4], ARGV[5])
if lease then
  for i = #lease.locks, 1, -1 do
    local lock = lease.locks[i]
    if string.sub(lock, 3) == name then
      table.remove(lease.locks, i)
      write_lease(key, lease)
      free(key, lock)
    end
  end
end
return { lists, lease and 1 or 0 }
end
scripts['unregister'] = function()
-- UNREGISTER(process): take back the process's leases now, so that others can take the keys.
-- Touches procs (zset) and all of the queue. Returns the lists to wake.
redis.call('ZREM', K.procs, ARGV[2])
local flat = redis.call('HGETALL', K.leases)
for i = 1, #flat, 2 do
  local lease = lease_of(flat[i])
  if lease and lease.process == ARGV[2] then take_back(flat[i], lease) end
end
return lists
end
local function run(_, args)
ARGV = args
local script = table.remove(ARGV, 1)
begin_call()
return scripts[script]()
end
redis.register_function('csifleet_9638c993f4bb62c7', run)
redis.register_function{ function_name = 'csifleet_9638c993f4bb62c7_always', callback = run, flags = { 'allow-oom' } }
