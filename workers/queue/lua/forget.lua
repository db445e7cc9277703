-- FORGET(key): the object is gone; counters, memo, mark and delayed entry go, waiting keys stay.
forget(ARGV[2])
redis.call('HDEL', K.marks, ARGV[2])
redis.call('ZREM', K.delayed, ARGV[2])
