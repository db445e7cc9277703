-- CATALOG_ENTRY(kind, name): read one object, for readers that have no copy of the kind.
-- Touches epoch, complete, fresh, catalog:<kind>; writes nothing. Returns {1 = the kind is complete
-- and was watched in the last FRESH_MS, entry}.
local epoch = redis.call('GET', K.epoch)
local is_fresh = (tonumber(redis.call('HGET', K.fresh, ARGV[2])) or 0) > now
local is_complete = epoch and redis.call('HGET', K.complete, ARGV[2]) == epoch and is_fresh
return { is_complete and 1 or 0, redis.call('HGET', K.catalog .. ARGV[2], ARGV[3]) or '' }
