-- CATALOG_PRUNE(kind, list rv, name...): drop the named tombstones. A tombstone that is newer than
-- the list is kept, because it rejects events that a slow watcher may still deliver. Readers whose
-- version is older than the newest dropped tombstone read the whole kind again.
-- Touches catalog:<kind> (hash), changes:<kind> (zset), versions, floors (hashes).
local kind = ARGV[2]
local pruned, floor = 0, 0
local newest = tonumber(redis.call('HGET', K.versions, kind)) or 0
for i = 4, #ARGV do
  local entry = redis.call('HGET', K.catalog .. kind, ARGV[i])
  local rv = string.match(entry or '', '^(%d+) $')
  if rv and not is_newer(rv, ARGV[3]) then
    floor = math.max(floor, tonumber(redis.call('ZSCORE', K.changes .. kind, ARGV[i])) or newest)
    redis.call('HDEL', K.catalog .. kind, ARGV[i])
    redis.call('ZREM', K.changes .. kind, ARGV[i])
    pruned = pruned + 1
  end
end
-- A reader with an older version than the newest of them would never learn of the removals from
-- `changes`.
if floor > (tonumber(redis.call('HGET', K.floors, kind)) or 0) then
  redis.call('HSET', K.floors, kind, string.format('%d', floor))
end
return pruned
