-- UNLOCK(key, process, token, epoch, name): release one lock before the lease ends. Repeatable.
-- Touches leases, holders and the places of the woken waiters.
-- Returns {lists, 1 = the process has the lease, 0 = it is lost}.
local key, name = ARGV[2], ARGV[6]
local lease = owned(key, ARGV[3], ARGV[4], ARGV[5])
if lease then
  for i = #lease.locks, 1, -1 do
    local lock = lease.locks[i]
    if string.sub(lock, 3) == name then
      table.remove(lease.locks, i)
      write_lease(key, lease)
      free(key, lock)
    end
  end
end
return { lists, lease and 1 or 0 }
