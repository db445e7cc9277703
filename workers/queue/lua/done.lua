-- DONE(key, process, token, epoch, stays, volume, known, known_in, note...): forget the failures and
-- release the key. If `volume` is not empty, its intent and unsaved PV are dropped in the same step.
-- Events up to the version `known` need no further reconcile, if the epoch is still `known_in`:
-- etcd may have been restored since, and then it uses lower versions again.
-- Returns {lists, 1 = done (now or before), 0 = the lease was lost}.
local key, lane, lease, is_ok = ending()
if lease then
  forget(key)
  if ARGV[7] ~= '' then
    end_attempt(driver_part(key), ARGV[7])
    redis.call('SET', K.saved .. driver_part(key) .. '|' .. ARGV[7], '1', 'EX', 600)
  end
  trail_pass(key, 10, 'done')
  local known = (redis.call('GET', K.epoch) or '') == ARGV[9] and ARGV[8] or ''
  if unlease(key, lane, known) then enqueue(key, lane, false) end
  if known ~= '' then is_news(key, known) end -- for events that arrive late
  free_all(key, lease)
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
