-- CATALOG_COMPLETE(epoch, kind...): the watcher has written all listed objects in this epoch.
-- Touches epoch (string), complete, fresh (hashes). Returns 1, or 0 if the epoch is over.
if redis.call('GET', K.epoch) ~= ARGV[2] then return 0 end
for i = 3, #ARGV do
  redis.call('HSET', K.complete, ARGV[i], ARGV[2])
  redis.call('HSET', K.fresh, ARGV[i], now + FRESH_MS)
end
return 1
