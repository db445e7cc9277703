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
