-- ADD_EVENTS(key, version, ...): make keys dirty, once for each version of their objects.
-- Touches seen:<minute> (hash, 3 min), news, and what ADD touches. Idempotent within a minute.
-- Returns the lists to wake.
local lanes = {}
for i = 2, #ARGV, 2 do
  local key, version = ARGV[i], ARGV[i + 1]
  if is_news(key, version) then
    local lane = lane_of(key)
    if redis.call('HEXISTS', K.leases, key) == 1 then
      redis.call('HSET', K.news, key, version) -- the running reconcile may know it already
    elseif enqueue(key, lane, false) then
      lanes[lane] = true
    end
  end
end
for lane in pairs(lanes) do wake(lane) end
return lists
