-- END_HISTORY(epoch, kind...): resourceVersions went back, so nothing that depends on them is
-- valid.
-- Touches epoch, complete, fresh, versions, floors, news, seen:<minute>, catalog:<kind> and
-- changes:<kind>: all of them are deleted. Without an epoch, a new life begins, in which processes
-- restore their leases and watchers list everything. Returns 1, or 0 if that epoch is over.
if redis.call('GET', K.epoch) ~= ARGV[2] then return 0 end
redis.call('DEL', K.epoch, K.complete, K.fresh, K.news)
for minute = math.floor(now / 60000) - 4, math.floor(now / 60000) do
  redis.call('DEL', K.seen .. minute)
end
for i = 3, #ARGV do
  redis.call('DEL', K.catalog .. ARGV[i], K.changes .. ARGV[i])
  redis.call('HDEL', K.versions, ARGV[i])
  redis.call('HDEL', K.floors, ARGV[i])
end
return 1
