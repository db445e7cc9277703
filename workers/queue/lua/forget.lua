-- FORGET(key...): the objects are gone; counters, memo, mark and delayed entry go, waiting keys stay.
for i = 2, #ARGV do
  forget(ARGV[i])
  redis.call('HDEL', K.marks .. driver_part(ARGV[i]), ARGV[i])
  redis.call('ZREM', K.delayed, ARGV[i])
end
