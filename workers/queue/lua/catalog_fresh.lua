-- CATALOG_FRESH(epoch, kind...): a watcher follows these kinds and has written all events so far.
-- Touches epoch, complete (read), fresh (hash). Returns how many kinds are complete in this epoch.
local count = 0
if redis.call('GET', K.epoch) ~= ARGV[2] then return count end
for i = 3, #ARGV do
  if redis.call('HGET', K.complete, ARGV[i]) == ARGV[2] then
    redis.call('HSET', K.fresh, ARGV[i], now + FRESH_MS)
    count = count + 1
  end
end
return count
