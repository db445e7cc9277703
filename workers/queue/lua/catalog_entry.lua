-- CATALOG_ENTRY(kind, name): one object, for readers without a copy of the kind.
-- Touches epoch, complete, catalog:<kind>; writes nothing. Returns {1 = the kind is complete, entry}.
local epoch = redis.call('GET', K.epoch)
local is_complete = epoch and redis.call('HGET', K.complete, ARGV[2]) == epoch
return { is_complete and 1 or 0, redis.call('HGET', K.catalog .. ARGV[2], ARGV[3]) or '' }
