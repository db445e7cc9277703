-- LIMITS(lane, concurrency, rate, burst, total, hold_ms): declare, then admit. Returns the tickets
-- to publish.
-- Touches limits:<lane> (hash), limited (set); the bucket's level is kept.
redis.call('HSET', K.limits .. ARGV[2], 'concurrency', ARGV[3], 'rate', ARGV[4], 'burst', ARGV[5],
  'total', ARGV[6] or 0, 'hold', ARGV[7] or 0)
redis.call('SADD', K.limited, ARGV[2])
admit(ARGV[2])
return tickets
