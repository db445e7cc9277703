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
