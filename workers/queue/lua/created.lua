-- CREATED(driver, domain, intent, pv, key, process, token): the volume exists; keep its PV until it
-- is saved, if the process still has the lease. Without a key there is no lease to check.
-- Touches intents and unsaved of the driver, held, leases (hashes).
-- Returns 1 = written, 0 = the lease is lost.
local driver, domain, key = ARGV[2], ARGV[3], ARGV[6]
if key ~= '' and not lease_by(key, ARGV[7], ARGV[8]) then return 0 end
weigh(K.intents .. driver, domain, ARGV[4])
redis.call('HSET', K.intents .. driver, domain, ARGV[4])
redis.call('HSET', K.unsaved .. driver, domain, ARGV[5])
return 1
