-- REGISTER(process, ttl_ms, candidate_epoch): the process is alive for ttl. Returns the epoch.
-- Touches procs (zset), epoch (string).
redis.call('SET', K.epoch, ARGV[4], 'NX')
redis.call('ZADD', K.procs, now + tonumber(ARGV[3]), ARGV[2])
return redis.call('GET', K.epoch)
