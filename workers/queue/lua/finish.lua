-- FINISH(driver, domain, key, process, token): delete intent and unsaved PV unless the lease went to
-- somebody else, whose intent it would be. Touches intents and unsaved of the driver, held, leases.
-- Returns 1 = deleted, 0 = lease lost.
if ARGV[4] ~= '' and not lease_by(ARGV[4], ARGV[5], ARGV[6]) then return 0 end
end_attempt(ARGV[2], ARGV[3])
return 1
