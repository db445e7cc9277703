-- CREATED(domain, intent, pv, key, process, token): the volume exists; keep its PV until it is saved,
-- if the lease is still ours. Without a key there is no lease to check.
-- Touches intents, held, unsaved, leases (hashes). Returns 1 = written, 0 = lease lost.
if ARGV[5] ~= '' then
  local lease = lease_of(ARGV[5])
  if not (lease and lease.process == ARGV[6] and lease.token == ARGV[7]) then return 0 end
end
weigh(ARGV[2], ARGV[3])
redis.call('HSET', K.intents, ARGV[2], ARGV[3])
redis.call('HSET', K.unsaved, ARGV[2], ARGV[4])
return 1
