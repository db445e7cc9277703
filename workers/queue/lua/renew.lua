-- RENEW(process, epoch, ttl_ms): 1 = all leases of the process go on, 0 = they are lost.
-- A process past its deadline that nobody swept yet still owns its leases.
-- Touches procs (zset), epoch (string).
if redis.call('GET', K.epoch) ~= ARGV[3] or not redis.call('ZSCORE', K.procs, ARGV[2]) then
  return 0
end
redis.call('ZADD', K.procs, now + tonumber(ARGV[4]), ARGV[2])
return 1
