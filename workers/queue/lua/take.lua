-- TAKE(key, process, token, ttl_ms, rules, lock...): ticketed -> running with all its locks. The same
-- token gets the same answer. If somebody works on the key already, or has, the message is one for the
-- oldest other key that has a rule (see `follow`).
-- Touches leases, ticketed, leased, holders, reserved, blocked, waiters, delayed, since,
-- fence, led_to, and the Celery list.
-- Returns {status, tickets, state}; 'other', tickets and a key without a rule that is to be taken
-- instead; or 'taken', tickets and {key, locks, fence, started_ms, fails, memo, mark,
-- waited_ms, epoch, versions, complete kinds, newest version of its object, intent, unsaved PV, was saved},
-- of which the last three belong to the first lock's name.
local LED_TO_MS = 60000 -- longer than the client repeats
local key, process, token, ttl, rules = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
if not life() then return { 'new life', tickets, false } end
local status, state = take(key, process, token, ttl, { unpack(ARGV, 7) })
if (status == 'none' or status == 'running') and rules ~= '' then
  local led_to, other = redis.call('GET', K.led_to .. token), nil
  if led_to then -- a copy of a call whose reply was lost
    local lease = lease_of(led_to)
    if not lease or lease.process ~= process or lease.token ~= token then
      return { status, tickets, false }
    end
    return { 'taken', tickets, state_of(led_to, lease, 0) }
  end
  state, other = follow(lane_of(key), process, token, ttl, rules, true)
  if state then
    redis.call('SET', K.led_to .. token, state[1], 'PX', LED_TO_MS)
    return { 'taken', tickets, state }
  end
  if other then return { 'other', tickets, other } end
end
return { status, tickets, state or false }
