-- CREATED(domain, intent, pv): the volume exists; keep its PV until it is saved.
-- Touches intents (hash), unsaved (hash).
redis.call('HSET', K.intents, ARGV[2], ARGV[3])
redis.call('HSET', K.unsaved, ARGV[2], ARGV[4])
return 1
