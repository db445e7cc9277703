-- UNREGISTER(process): hand over its leases now. Returns the tickets to publish.
-- Touches procs (zset) and all of the queue.
redis.call('ZREM', K.procs, ARGV[2])
release_dead()
return tickets
