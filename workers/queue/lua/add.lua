-- ADD(delay_ms, key...): make keys dirty, at once or after a delay. Idempotent.
-- Touches leases, dirty, ready/retry of the lanes, blocked, delayed, since, share, limits.
-- Returns the lists to wake.
local wait_ms = tonumber(ARGV[2])
local lanes = {}
for i = 3, #ARGV do
  local key = ARGV[i]
  if wait_ms > 0 then
    delay(key, now + wait_ms)
  else
    local lane = lane_of(key)
    if enqueue(key, lane, false) then lanes[lane] = true end
  end
end
for lane in pairs(lanes) do wake(lane) end
return lists
