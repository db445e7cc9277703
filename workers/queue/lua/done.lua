-- DONE(key, process, token, epoch, stays, volume, known, note...): forget failures, release; with a
-- volume's name its intent and unsaved PV go in the same step. Events up to version `known` need no pass.
-- Returns {lists, 1 = done (or done before), 0 = lease was lost}.
local key, lane, lease, is_ok = ending()
if lease then
  forget(key)
  if ARGV[7] ~= '' then
    end_attempt(driver_part(key), ARGV[7])
    redis.call('SET', K.saved .. driver_part(key) .. '|' .. ARGV[7], '1', 'EX', 600)
  end
  trail_pass(key, 9, 'done')
  local known = ARGV[8]
  if unlease(key, lane, known) then enqueue(key, lane, false) end
  if known ~= '' then is_news(key, known) end -- those that come late
  free_all(key, lease)
  wake(lane)
end
return { lists, is_ok and 1 or 0 }
