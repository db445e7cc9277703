-- LIMITS(lane, concurrency, rate, burst): declare, then admit. Returns the tickets to publish.
-- Touches limits:<lane> (hash); the bucket's level is kept.
redis.call('HSET', K.limits .. ARGV[2], 'concurrency', ARGV[3], 'rate', ARGV[4], 'burst', ARGV[5])
admit(ARGV[2])
return tickets
