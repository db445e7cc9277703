-- BEGIN(domain, record, key, process, token): write the intent if the lease is still ours.
-- Without a key there is no lease to check. Touches intents (hash), leases (hash).
-- Returns 1 = written, 0 = lease lost.
if ARGV[4] ~= '' then
  local lease = lease_of(ARGV[4])
  if not (lease and lease.process == ARGV[5] and lease.token == ARGV[6]) then return 0 end
end
redis.call('HSET', K.intents, ARGV[2], ARGV[3])
if ARGV[4] ~= '' then trail(ARGV[4], stamped('intent')) end
return 1
