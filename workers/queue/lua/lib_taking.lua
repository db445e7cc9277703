-- Beginning to work on keys: functions shared by all scripts, after lib_leases.lua.
-- A message in a Celery list stands for any one ticketed key of its lanes, whichever key it names:
-- who ends a lease goes on with the oldest of them at once, and the message of that one is left for a
-- key that was admitted meanwhile. So a burst is worked off without making and reading messages.
local FOLLOW_TRIES = 3         -- ticketed keys that turn out to wait for a lock
local EACH_RULE = '(%S+) ?([^\n]*)' -- kind, locks

-- The name of a claim's record, as `Key.record_name` in keys.py has it; nil for other kinds.
local function record_name(key)
  local driver, uid = string.match(key, '^claims|([^|]*)|[^|]*|([^|]*)$')
  local node = driver and string.match(driver, '@(.+)$')
  return driver and 'pvc-' .. uid .. (node and '@' .. node or '')
end

-- A ticketed key -> running with all its locks. Returns 'taken' and the state of its lease, or why not.
local function state_of(key, lease, waited)
  local epoch = redis.call('GET', K.epoch) or ''
  local complete, flat = {}, redis.call('HGETALL', K.complete)
  for i = 1, #flat, 2 do
    if flat[i + 1] == epoch then complete[#complete + 1] = flat[i] end
  end
  local intent, unsaved, saved, name = false, false, 0, record_name(key)
  if name then
    intent, unsaved = redis.call('HGET', K.intents, name), redis.call('HGET', K.unsaved, name)
    saved = redis.call('EXISTS', K.saved .. name)
  end
  return { key, lease.locks, lease.fence, lease.started, redis.call('HGET', K.fails, key) or '0',
    redis.call('HGET', K.memos, key) or '', redis.call('HGET', K.marks, key) or '',
    string.format('%d', math.max(0, waited)), epoch,
    redis.call('HGETALL', K.versions), complete, newest_seen(key) or '', intent, unsaved, saved }
end

local function take(key, process, token, ttl, locks)
  local lane = lane_of(key)
  local lease = lease_of(key)
  if lease then
    if lease.process == process and lease.token == token then
      return 'taken', state_of(key, lease, 0)
    end
    return 'running'
  end
  if not redis.call('ZSCORE', K.ticketed .. lane, key) then return 'none' end
  if is_quiet() then return 'quiet' end
  if is_paused(lane) then
    redis.call('ZREM', K.ticketed .. lane, key)
    push(key, lane, true)
    return 'paused'
  end
  for _, lock in ipairs(locks) do
    local holder = holder_against(key, lock)
    if holder then
      redis.call('ZREM', K.ticketed .. lane, key)
      park(key, lock, holder)
      admit(lane)
      return 'busy'
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
  for _, lock in ipairs(locks) do hold(key, new, lock) end
  write_lease(key, new)
  admit(lane)
  return 'taken', state_of(key, new, now - since)
end

-- The locks of a key by its kind's rule: their spelling with \1 for the object and \2 for the uid.
-- nil where that cannot be said so: the key is then taken by who gets a message.
local function locks_by(rule, key)
  local object, uid = string.match(key, '^[^|]*|[^|]*|([^|]*)|([^|]*)$')
  if rule == '-' or not object or string.find(object .. uid, '[^%w%.%-_/@]') then return nil end
  local locks = {}
  for lock in string.gmatch(rule, '%S+') do
    if object == '' and string.find(lock, '\1') or uid == '' and string.find(lock, '\2') then
      return nil
    end
    lock = string.gsub(lock, '\1', object)
    locks[#locks + 1] = string.gsub(lock, '\2', uid)
  end
  return locks
end

-- A key is not ticketed any more whose message nobody has read, so there is one too many: one less is
-- sent for what this call admits; if that is nothing, the oldest goes when more are left than keys.
local function spare_message(key)
  local lane = lane_of(key)
  local list, found = celery_of(lane), nil
  for i, ticket in ipairs(tickets) do
    if string.sub(ticket, 1, 1) ~= '|' and celery_of(lane_of(ticket)) == list then found = i end
    if ticket == key then break end
  end
  if found then
    table.remove(tickets, found)
    return
  end
  local kind, driver = string.match(lane, '^([^|]*)|(.*)$')
  local waiting = 0
  for _, other in ipairs(KINDS) do
    if other == kind or driver ~= '' and APART[other] == APART[kind] then
      waiting = waiting + redis.call('ZCARD', K.ticketed .. other .. '|' .. driver)
    end
  end
  local left = redis.pcall('LLEN', list)
  if type(left) == 'number' and left > waiting then redis.call('RPOP', list) end
end

-- Go on with the oldest ticketed key of the same driver. `rules` has a line for each kind: 'kind
-- lock...', the locks as `locks_by` reads them, or 'kind -' for none. `has_message`: a message was
-- read, which stands for the first key that is not ticketed any more after this.
-- Returns the state of its lease; nil for none, and then the key that has no rule.
local function follow(lane, process, token, ttl, rules, has_message)
  local driver = string.match(lane, '^[^|]*|(.*)$') or ''
  for _ = 1, FOLLOW_TRIES do
    local first, home, rule, since = nil, nil, nil, MOST
    for kind, locks in string.gmatch(rules, EACH_RULE) do
      local place = kind .. '|' .. driver
      local oldest = redis.call('ZRANGE', K.ticketed .. place, 0, 0, 'WITHSCORES')
      if oldest[1] and tonumber(oldest[2]) < since then
        first, home, rule, since = oldest[1], place, locks, tonumber(oldest[2])
      end
    end
    if not first then return nil end
    local locks = locks_by(rule, first)
    if not locks then
      -- Another spelling, by somebody's hand, would be asked for again and again.
      return nil, is_at_home(first, home) and first or nil
    end
    local status, state = take(first, process, token, ttl, locks)
    if status ~= 'taken' and status ~= 'busy' and status ~= 'paused' then return nil end
    if not has_message then spare_message(first) end
    if state then return state end
    has_message = false
  end
  return nil
end

-- What an earlier copy of this call went on with: the state of its lease, nil for nothing.
local function followed(lane, process, token, rules)
  local driver = string.match(lane, '^[^|]*|(.*)$') or ''
  for kind in string.gmatch(rules, EACH_RULE) do
    for _, key in ipairs(redis.call('ZRANGE', K.leased .. kind .. '|' .. driver, 0, -1)) do
      local lease = lease_of(key)
      if lease and lease.process == process and lease.token == token then
        return state_of(key, lease, 0)
      end
    end
  end
  return nil
end

-- The reply of a script that ends a lease. With ARGV[6] its thread goes on with another key: with the
-- same one if the call is repeated because the first reply was lost, for only one of them is read.
-- ARGV[6] is 'token ttl_ms' and, each in a line of its own, rules.
local function ended(lease, is_ok, lane, ...)
  local state = nil
  local token, ttl, rules = string.match(ARGV[6], '^(%S+) (%d+)\n(.*)$')
  if token and lease and life() then
    state = follow(lane, ARGV[3], token, tonumber(ttl), rules, false)
  elseif token and is_ok then
    state = followed(lane, ARGV[3], token, rules)
  end
  return { tickets, state or false, is_ok and 1 or 0, ... }
end
