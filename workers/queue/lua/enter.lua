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
