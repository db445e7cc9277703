-- FINISH(driver, domain, key, process, token): delete intent and unsaved PV unless the lease went to
-- somebody else, whose intent it would be. Touches intents and unsaved of the driver, held, leases.
-- Returns 1 = deleted, 0 = lease lost.
if ARGV[4] ~= '' then
  local lease = lease_of(ARGV[4])
  if not (lease and lease.process == ARGV[5] and lease.token == ARGV[6]) then return 0 end
end
end_attempt(ARGV[2], ARGV[3])
return 1
