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
