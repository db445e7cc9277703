-- FINISH(domain, key, process, token): delete intent and unsaved PV unless the lease went to
-- somebody else, whose intent it would be. Touches intents, held, unsaved (hashes), leases.
-- Returns 1 = deleted, 0 = lease lost.
if ARGV[3] ~= '' then
  local lease = lease_of(ARGV[3])
  if not (lease and lease.process == ARGV[4] and lease.token == ARGV[5]) then return 0 end
end
weigh(ARGV[2], '')
redis.call('HDEL', K.intents, ARGV[2])
redis.call('HDEL', K.unsaved, ARGV[2])
return 1
