-- Functions shared by all scripts. In front of this file: `K` (names of keys, from names.py), KINDS (all
-- kinds, in order of turns), CALL_KINDS (kinds whose keys call the driver), TRAILED (kinds with a trail)
-- and APART (part of the name of a kind's Celery list), from kinds.py.
-- This is run once, when the library is loaded, where no global is known yet.
-- Every script's first argument is the time in ms, "" outside of tests: then the clock below.
local FIRST_PER_RETRY = 5      -- retries weigh 1/5 of first attempts, however many tenants (G12)
local FIFO_STEP = 0.000001     -- later arrivals of equal virtual time come later
local WOKEN_MS = 2000          -- a wake-up that nobody answered was lost
local TRAIL_NOTES = 40         -- kept of each key's trail
local TRAIL_SECONDS = 3600
local TIGHT_SHARE = 0.6        -- of Redis' memory; the rest is for what is worked on
local FULL_SHARE = 0.9         -- no new work; the rest is to bring to its end what is there
local CROWDED_SHARE = 0.95     -- no new record; the rest is for Celery's lists
local TIGHT_MS = 60000
local LOOK_MS = 1000
local LOOK_AHEAD_SECONDS = 0.25 -- the next sweep's share of a rate; `pace` keeps the exact time
local FRESH_MS = 30000         -- a watcher's word that it follows a kind of the catalog
local GAP_MS = 1000            -- more of it in which no script ran is no time for the queue
local CLOCK_MS = 250           -- how often the clock is written
local KEPT_MS = 604800000      -- a key nobody cleared goes by the clock of Redis' host: cleaning only
local CALLS_DRIVER = {}
for i = 1, #CALL_KINDS do CALLS_DRIVER[CALL_KINDS[i]] = true end

local MOST = 9e15              -- beyond it Lua's numbers are not exact, and some cannot be stored

-- A number that somebody else may have written: never infinite, nil for what is none.
local function parse(text) return tonumber(text) end
local function tonumber(text)
  local number = parse(text)
  if not number or number ~= number then return nil end
  return math.max(-MOST, math.min(MOST, number))
end

-- Of this call: the queue's time, that of Redis' host, both in ms; the Celery lists for which the
-- caller must publish one message each (and what `drop` found), and the list whose next key the
-- caller takes itself.
local now, host_now, lists, own_list

-- The queue's clock, by which all that is kept here is stamped and compared. It has the pace of
-- Redis' host, and only goes on: whoever sets the clock of that host, or promotes a replica on
-- another one, changes nothing here but the difference between the two. What looks like a leap
-- forward may as well be time in which nobody was there to call, and nobody's time is over by it.
-- K.clock holds 'ms difference', 250 ms old at most; this run of Redis remembers the rest.
local clock_ms, difference = nil, 0

local function read_clock()
  local kept, kept_difference =
    string.match(redis.call('GET', K.clock) or '', '^(%d+) (-?%d+)$')
  kept = tonumber(kept)
  if kept then
    difference = tonumber(kept_difference)
    -- What an earlier run or a master kept; it may have gone on for as long as it writes nothing.
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

-- Whether no period of that name lasts any more. Whoever asks first then begins the next one.
local function begins_period(name, period_ms)
  if period_ms <= 0 then return true end
  local mark = K.period .. name
  if (tonumber(redis.call('GET', mark)) or 0) > now then return false end
  redis.call('SET', mark, string.format('%d', now + period_ms), 'PX', string.format('%d', period_ms))
  return true
end

-- The name of this run of Redis, another one after each start. Each run makes its library anew, also
-- one from a file or a master, so what is remembered here is never of another run; a text, which has
-- no memory, asks each time.
local run_id
local function this_run()
  run_id = run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  return run_id
end

-- The epoch, 'random:birth_ms:run_id', if it is that of this run of Redis: a restart and a fail-over
-- end a life as the loss of all data does, for each may have lost what was acknowledged. Then what
-- is written there, of whichever life.
local function life()
  local epoch = redis.call('GET', K.epoch)
  if epoch and string.match(epoch, ':(%w+)$') == this_run() then return epoch, epoch end
  return nil, epoch
end

-- Nothing is taken for one TTL of a life whose processes held leases in an earlier one: they
-- restore them meanwhile.
local function is_quiet() return now < (tonumber(redis.call('GET', K.quiet)) or 0) end

local function quiet_until(ms)
  local quiet = math.max(ms, tonumber(redis.call('GET', K.quiet)) or 0)
  redis.call('SET', K.quiet, string.format('%d', quiet))
end

-- The present life's epoch; begins one when there is none. `known` is the newest epoch the caller
-- has heard of, '' for none.
local function begin_life(candidate, known, ttl)
  local epoch, old = life()
  if not epoch then
    epoch = string.format('%s:%d:%s', candidate, now, this_run())
    redis.call('SET', K.epoch, epoch)
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

-- The driver's part of a key, node included: what the keys of its records are named after.
local function driver_part(key) return string.match(key, '^[^|]*|([^|]*)|') or '' end

-- What a key may hold beside plain ASCII: the escapes that `Key.text` in keys.py makes, and UTF-8.
local SPECIAL = { '%%[01][0-9A-F]', '%%25', '%%7C', '%%7F',
  '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
  '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]',
  '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
  '\244[\128-\143][\128-\191][\128-\191]' }

-- Whether a member of a lane's set is a key of that lane, in its one spelling: a worker that reads
-- another one would ask for a key that is not there, and the slot would be lost.
local function is_at_home(key, lane)
  if not string.match(key, '^[^|]+|[^|]*|[^|]*|[^|]*$') or lane_of(key) ~= lane then return false end
  if not string.find(key, '[%z\1-\31%%\127-\255]') then return true end
  -- By blanks, so that nothing comes together that stood apart.
  for _, pattern in ipairs(SPECIAL) do key = string.gsub(key, pattern, ' ') end
  return not string.find(key, '[%z\1-\31%%\127-\255]')
end

-- What is not at home is gone, and reported once by the caller of the script: this is no list.
local function drop(member)
  redis.call('HDEL', K.since, member)
  lists[#lists + 1] = '|' .. member
end

-- The namespace: 'namespace/name' is the object, or the last field is '@namespace'.
local function tenant_of(key)
  local object, last = string.match(key, '^[^|]*|[^|]*|([^|]*)|?(.*)')
  return string.match(object or '', '^([^/]*)/') or string.match(last or '', '^@(.*)') or ''
end

-- The Celery list in which messages announce work of a lane, as `place_of` in kinds.py has it.
local function celery_of(lane)
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  if driver == '' then return K.celery .. 'system-' .. kind end
  return K.celery .. (driver or '') .. (APART[kind] or '')
end

-- What happened to an object, for `csi-fleet explain`: the newest notes, 'ms event detail'.
-- Keys of one object in several lanes (node deployment) share a trail. What is kept for people is the
-- first to go where room gets scarce: one tenant's claims could fill Redis with it (SEC-4).
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

-- Used share of Redis' memory, looked at once a second. A script sent as a text, to a Redis before 7,
-- has no memory of its own and looks each time.
local used_share, looked_ms = 0, -MOST

local function look_for_room()
  if math.abs(now - looked_ms) < LOOK_MS then return end
  looked_ms = now
  local memory = redis.call('INFO', 'memory')
  local function bytes(name) return tonumber(string.match(memory, name .. ':(%d+)')) or 0 end
  -- Buffers of replicas and of the append-only file are no part of what it compares either.
  local used, most = bytes('used_memory') - bytes('mem_not_counted_for_evict'), bytes('maxmemory')
  used_share = most > 0 and used / most or 0
  if used_share > TIGHT_SHARE then
    redis.call('SET', K.tight, string.format('%d', now + TIGHT_MS), 'PX', TIGHT_MS)
  end
end

-- The error of who would add to a Redis of which more than a share is used, nil while there is room.
-- Redis itself refuses too late: no message could be sent any more either, and nothing would drain.
local function refused(share)
  look_for_room()
  if used_share <= share then return nil end
  return redis.error_reply(string.format('OOM nearly full: %d %% of maxmemory is used; nothing '
    .. 'new is accepted until work ends. Raise maxmemory', used_share * 100))
end

-- The same for a record of an attempt: one that is replaced may be the attempt's end.
local function refused_if_new(hash, field)
  if redis.call('HEXISTS', hash, field) == 1 then return nil end
  return refused(CROWDED_SHARE)
end

-- For people, who compare it with what the API server stamped: by the clock of Redis' host.
local function stamped(event) return string.format('%d %s', host_now, event) end

-- The notes of a pass, ARGV[first] on as 'age_ms text', then how its lease ended.
local function trail_pass(key, first, ending)
  local notes = {}
  for i = first, math.min(#ARGV, first + TRAIL_NOTES) do
    local age, text = string.match(ARGV[i], '^(%d+) (.*)$')
    if age then notes[#notes + 1] = string.format('%d %s', host_now - age, text) end
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

-- The driver's own name: a lane of node deployment has driver@node.
local function driver_of(lane) return string.match(lane, '^[^|]*|([^@]*)') or '' end

local function is_paused(lane)
  -- Mostly nothing is.
  if redis.call('EXISTS', K.paused, K.pauses) == 0 then return false end
  local found = redis.call('HMGET', K.paused, 'driver ' .. lane, 'lease ' .. lane)
  found[3] = redis.call('HGET', K.pauses, 'driver ' .. driver_of(lane))
  for _, value in ipairs(found) do
    local until_ms = value and tonumber(string.match(value, '^(%d+) '))
    if until_ms and (until_ms == 0 or until_ms > now) then return true end
  end
  return false
end

-- Start-time fair queueing: a tenant's n-th waiting key gets virtual time n, so tenants take turns.
-- `front` keys were taken before and do not pay again.
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

-- The lane's concurrency now: as declared, or less after throttling answers. A lowered one
-- grows by itself, `cap_gain` per `cap_step` ms.
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
  return redis.call('ZCARD', K.leased .. lane)
    + redis.call('ZCOUNT', K.ghosts .. lane, '(' .. now, '+inf')
end

-- A pass of a lane with a rate begins. A take looks ahead, so there may be a debt.
local function charge(lane)
  local limits = K.limits .. lane
  local raw = redis.call('HMGET', limits, 'rate', 'burst', 'tokens', 'at')
  local tokens = bucket(tonumber(raw[1]), tonumber(raw[2]), tonumber(raw[3]), tonumber(raw[4]))
  if tokens ~= math.huge then
    redis.call('HSET', limits, 'tokens', string.format('%.17g', tokens - 1), 'at', now)
  end
end

-- What the limits of a lane say if one of its waiting keys may be taken now, else nil. `reserved` of
-- the calls that the driver has left are other kinds' turns.
local function open_lane(lane, reserved)
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
    local all = reserved or 0
    for _, other in ipairs(CALL_KINDS) do all = all + busy(other .. '|' .. driver) end
    free = math.min(free, total - all)
  end
  if free <= 0 then return nil end
  local tokens = bucket(rate, tonumber(raw[3]), tonumber(raw[4]), tonumber(raw[5]))
  if tokens ~= math.huge and tokens + rate * LOOK_AHEAD_SECONDS < 1 then return nil end
  -- Last: lanes that wait are mostly busy ones.
  if is_paused(lane) or is_quiet() then return nil end
  return { first = first, retry = retry, streak = tonumber(raw[6]) or 0 }
end

-- One message for the list of a lane if something of the lane could be taken and none is on its way.
local function wake_lane(lane)
  local list = celery_of(lane)
  if list == own_list then return end
  local flag = K.woken .. list
  -- The end is by the queue's clock: that of Redis' host may be set back.
  if (tonumber(redis.call('GET', flag)) or 0) > now or not open_lane(lane) then return end
  redis.call('SET', flag, string.format('%d', now + WOKEN_MS), 'PX', WOKEN_MS)
  -- One that waits there means the same, also where nobody fetches any.
  local waiting = redis.pcall('LLEN', list)
  if type(waiting) ~= 'number' or waiting == 0 then lists[#lists + 1] = list end
end

-- Limits of a lane may allow more, or something came to it. A call of a driver with a limit over all
-- of them (`total`) may be any kind's.
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
