-- CATALOG_PUT(kind, name, rv, json, ...): write objects; the newer resourceVersion wins. An empty
-- json is a tombstone, which also wins at an equal version (a new list without the object, a
-- repeated delete).
-- Touches catalog:<kind> (hash), changes:<kind> (zset), versions (hash). Idempotent.
-- Returns the number of entries that changed.
local kind = ARGV[2]
local entries, changes = K.catalog .. kind, K.changes .. kind

local version = tonumber(redis.call('HGET', K.versions, kind))
-- A lost counter starts from the current time, so that versions of an earlier life are never
-- reused.
if not version then version = now * 1000 end
local changed = 0
for i = 3, #ARGV, 3 do
  local name, rv, json = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local old_rv, old_json = string.match(redis.call('HGET', entries, name) or '', '^(%d+) (.*)$')
  local wins = not old_rv or is_newer(rv, old_rv)
    or (rv == old_rv and json == '' and old_json ~= '')
  if wins and not (json == '' and not old_rv) then
    version, changed = version + 1, changed + 1
    redis.call('HSET', entries, name, rv .. ' ' .. json)
    redis.call('ZADD', changes, string.format('%d', version), name)
  end
end
redis.call('HSET', K.versions, kind, string.format('%d', version))
return changed
