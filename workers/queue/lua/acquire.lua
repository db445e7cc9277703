-- ACQUIRE(key, process, token, epoch, lock...): take all these locks for the lease, or none.
-- Repeatable.
-- Touches leases, holders. Returns 0 = all are held, n = the n-th is busy, -1 = the lease is lost.
local key = ARGV[2]
local lease = owned(key, ARGV[3], ARGV[4], ARGV[5])
if not lease then return -1 end
for i = 6, #ARGV do
  if holder_against(key, ARGV[i]) then return i - 5 end
end
for i = 6, #ARGV do hold(key, lease, ARGV[i]) end
write_lease(key, lease)
return 0
