-- BEGIN(domain, record, key, process, token, most, note): write the intent if the lease is still
-- ours, and for a volume without one, if its namespace then has no more than `most` bytes of them.
-- Without a key there is no lease to check; an empty `note` leaves the history as it is.
-- Touches intents, held, leases (hashes), trail (list).
-- Returns 1 = written, 0 = lease lost, 2 = the namespace is full.
if ARGV[4] ~= '' then
  local lease = lease_of(ARGV[4])
  if not (lease and lease.process == ARGV[5] and lease.token == ARGV[6]) then return 0 end
end
local full = refused_if_new(K.intents, ARGV[2])
if full then return full end
if not weigh(ARGV[2], ARGV[3], tonumber(ARGV[7])) then return 2 end
redis.call('HSET', K.intents, ARGV[2], ARGV[3])
if ARGV[4] ~= '' and ARGV[8] ~= '' then trail(ARGV[4], stamped(ARGV[8])) end
return 1
