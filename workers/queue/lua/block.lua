-- BLOCK(key, process, token, epoch, stays, lock, note...): end the lease and let the key wait for a
-- busy lock. If the lock was released meanwhile, the key is ready at once. No counter changes.
-- Returns {lists, 1 = released (now or before), 0 = the lease was lost}.
local key, lane, lease, is_ok = ending()
local lock = ARGV[7]
if lease then
  trail_pass(key, 8, 'released 0')
  unlease(key, lane)
  free_all(key, lease)
  local holder = holder_against(key, lock)
  if holder then
    park(key, lock, holder)
  else
    enqueue(key, lane, true)
  end
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
