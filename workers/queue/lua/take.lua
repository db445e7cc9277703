-- TAKE(key, process, token, ttl_ms, rules, lock...): ticketed -> running with all its locks. A copy of
-- the call, known by its token, gets the same lease, the same name of another key, or none. If
-- somebody works on the key already, or has, the message is one for the oldest other key that has a
-- rule (see `follow`).
-- Touches leases, ticketed, leased, holders, blocked, waiters, delayed, since,
-- fence, led_to, and the Celery list.
-- Returns {status, tickets, state}; 'other', tickets and a key without a rule that is to be taken
-- instead; or 'taken', tickets and {key, locks, fence, started_ms, fails, memo, mark,
-- waited_ms, epoch, versions, complete kinds, newest version of its object, intent, unsaved PV, was
-- saved}, of which the last three are a claim's.
local LED_TO_MS = 60000 -- longer than the client repeats
local key, process, token, ttl, rules = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
if not life() then return { 'new life', tickets, false } end
local noted = K.led_to .. token
local led_to = redis.call('GET', noted)
if led_to then -- a copy of a call whose reply was lost, or that comes late
  local lease = lease_of(led_to)
  local is_ours = lease and lease.process == process and lease.token == token
  if is_ours then return { 'taken', tickets, state_of(led_to, lease, 0) } end
  if led_to ~= key and redis.call('ZSCORE', K.ticketed .. lane_of(led_to), led_to) then
    return { 'other', tickets, led_to }
  end
  return { 'none', tickets, false }
end
local status, state = take(key, process, token, ttl, { unpack(ARGV, 7) })
led_to = key
if (status == 'none' or status == 'running') and rules ~= '' then
  local found, other = follow(lane_of(key), process, token, ttl, rules, true)
  if other then status, state, led_to = 'other', other, other end
  if found then status, state, led_to = 'taken', found, found[1] end
end
redis.call('SET', noted, led_to, 'PX', LED_TO_MS)
return { status, tickets, state or false }
