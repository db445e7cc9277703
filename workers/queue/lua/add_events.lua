-- ADD_EVENTS(key, version, ...): make keys dirty, each version of their objects once.
-- Touches seen:<minute> (hash, 3 min), and what ADD touches. Idempotent within a minute.
-- Returns the tickets to publish.
local minute = math.floor(now / 60000)
local seen, before = K.seen .. minute, K.seen .. (minute - 1)
local lanes = {}
for i = 2, #ARGV, 2 do
  local key, version = ARGV[i], ARGV[i + 1]
  local newest = redis.call('HGET', seen, key) or redis.call('HGET', before, key)
  if not newest or is_newer(version, newest) then
    redis.call('HSET', seen, key, version)
    local lane = lane_of(key)
    if enqueue(key, lane, false) then lanes[lane] = true end
  end
end
redis.call('EXPIRE', seen, 180)
for lane in pairs(lanes) do admit(lane) end
return tickets
