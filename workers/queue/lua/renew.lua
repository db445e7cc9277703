-- RENEW(process, epoch, ttl_ms, (key, token)...): renew the leases that the process holds. Leases
-- that it does not name expire: a delayed copy of TAKE may have made a lease that no process knows
-- of.
-- Touches procs, leases, leased, lost.
-- Returns {1 = same life, the time in ms, tokens of lost leases...}; in another life {0}: call
-- REGAIN.
local process, ttl = ARGV[2], tonumber(ARGV[4])
if life() ~= ARGV[3] then return { 0 } end
redis.call('ZADD', K.procs, now + ttl, process)
local reply = { 1, now }
for i = 5, #ARGV, 2 do
  local key, token = ARGV[i], ARGV[i + 1]
  if lease_by(key, process, token) then
    redis.call('ZADD', K.leased .. lane_of(key), now + ttl, key)
  else
    redis.call('ZADD', K.lost, now, token)
    reply[#reply + 1] = token
  end
end
return reply
