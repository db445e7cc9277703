-- FINISH(driver, domain, key, process, token): delete the intent and the unsaved PV, unless another
-- process has the lease: the intent would then belong to that process.
-- Touches intents and unsaved of the driver, held, leases. Returns 1 = deleted, 0 = the lease is
-- lost.
if ARGV[4] ~= '' and not lease_by(ARGV[4], ARGV[5], ARGV[6]) then return 0 end
end_attempt(ARGV[2], ARGV[3])
return 1
