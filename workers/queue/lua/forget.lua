-- FORGET(key...): the objects are gone. Drop their counters, memos, marks and delayed entries, but
-- keep waiting keys.
for i = 2, #ARGV do
  forget(ARGV[i])
  redis.call('HDEL', K.marks .. driver_part(ARGV[i]), ARGV[i])
  redis.call('ZREM', K.delayed, ARGV[i])
end
