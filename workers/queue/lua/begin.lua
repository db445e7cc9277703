-- BEGIN(driver, domain, record, key, process, token, most, note): write the intent if the process
-- still has the lease. A new intent is written only if its namespace then has at most `most` bytes.
-- Without a key there is no lease to check; an empty `note` leaves the history unchanged.
-- Touches intents of the driver, held, leases (hashes), trail (list).
-- Returns 1 = written, 0 = the lease is lost, 2 = the namespace is full.
local intents, domain, record, key = K.intents .. ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if key ~= '' and not lease_by(key, ARGV[6], ARGV[7]) then return 0 end
local full = refused_if_new(intents, domain)
if full then return full end
if not weigh(intents, domain, record, tonumber(ARGV[8])) then return 2 end
redis.call('HSET', intents, domain, record)
if key ~= '' and ARGV[9] ~= '' then trail(key, stamped(ARGV[9])) end
return 1
