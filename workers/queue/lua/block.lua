-- BLOCK(key, process, token, epoch, next, lock, note...): end the lease and wait for a busy lock; if
-- it got free meanwhile the key is ready at once. No counter changes.
-- Returns {tickets, state of the next lease (see TAKE), 1 = released (or before), 0 = lease was lost}.
local key, lane, lock = ARGV[2], lane_of(ARGV[2]), ARGV[7]
local lease, is_ok = owned(key, ARGV[3], ARGV[4], ARGV[5])
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
  admit(lane)
end
return ended(lease, is_ok, lane)
