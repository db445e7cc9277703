-- UNREGISTER(process): take back the process's leases now, so that others can take the keys.
-- Touches procs (zset) and all of the queue. Returns the lists to wake.
redis.call('ZREM', K.procs, ARGV[2])
local flat = redis.call('HGETALL', K.leases)
for i = 1, #flat, 2 do
  local lease = lease_of(flat[i])
  if lease and lease.process == ARGV[2] then take_back(flat[i], lease) end
end
return lists
