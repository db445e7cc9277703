-- DONE(key, process, token, epoch, finish_intent, note...): forget failures, release.
-- Returns {tickets, 1 = done (or done before), 0 = lease was lost}.
local key, lane = ARGV[2], lane_of(ARGV[2])
local lease, is_ok = owned(key, ARGV[3], ARGV[4], ARGV[5])
if lease then
  forget(key)
  if ARGV[6] == '1' and lease.domain ~= '' then
    redis.call('HDEL', K.intents, lease.domain)
    redis.call('HDEL', K.unsaved, lease.domain)
    redis.call('SET', K.saved .. lease.domain, '1', 'EX', 600)
  end
  trail_pass(key, 7, 'done')
  if unlease(key, lane) then enqueue(key, lane, false) end
  free_domain(lease.domain, key)
  admit(lane)
end
return { tickets, is_ok and 1 or 0 }
