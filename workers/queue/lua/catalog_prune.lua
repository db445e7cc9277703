-- CATALOG_PRUNE(kind, name...): drop the tombstones named; readers below the floor reload.
-- Touches catalog:<kind> (hash), changes:<kind> (zset), versions, floors (hashes).
local kind = ARGV[2]
local pruned = 0
for i = 3, #ARGV do
  local entry = redis.call('HGET', K.catalog .. kind, ARGV[i])
  if entry and string.match(entry, '^%d+ $') then
    redis.call('HDEL', K.catalog .. kind, ARGV[i])
    redis.call('ZREM', K.changes .. kind, ARGV[i])
    pruned = pruned + 1
  end
end
local version = redis.call('HGET', K.versions, kind)
if pruned > 0 and version then redis.call('HSET', K.floors, kind, version) end
return pruned
