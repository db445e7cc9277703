-- BLOCK(key, process, token, epoch, stays, lock, note...): end the lease and wait for a busy lock; if
-- it got free meanwhile the key is ready at once. No counter changes.
-- Returns {lists, 1 = released (or before), 0 = lease was lost}.
local key, lane, lock = ARGV[2], lane_of(ARGV[2]), ARGV[7]
local lease, is_ok = owned(key, ARGV[3], ARGV[4], ARGV[5])
if ARGV[6] == '1' then own_list = celery_of(lane) end -- the caller takes its next key itself
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
