-- CATALOG_PRUNE(kind, list rv, name...): drop the tombstones named; one newer than the list stays,
-- for it keeps out what a slow watcher still brings. Readers below the floor reload.
-- Touches catalog:<kind> (hash), changes:<kind> (zset), versions, floors (hashes).
local kind = ARGV[2]
local pruned = 0
for i = 4, #ARGV do
  local entry = redis.call('HGET', K.catalog .. kind, ARGV[i])
  local rv = string.match(entry or '', '^(%d+) $')
  if rv and not is_newer(rv, ARGV[3]) then
    redis.call('HDEL', K.catalog .. kind, ARGV[i])
    redis.call('ZREM', K.changes .. kind, ARGV[i])
    pruned = pruned + 1
  end
end
local version = redis.call('HGET', K.versions, kind)
if pruned > 0 and version then redis.call('HSET', K.floors, kind, version) end
return pruned
