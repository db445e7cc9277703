-- RESUME(kind, lane...): end one kind of pause, then wake the lanes.
-- Touches paused (hash). Returns the lists to wake.
local kind = ARGV[2]
for i = 3, #ARGV do
  redis.call('HDEL', K.paused, kind .. ' ' .. ARGV[i])
  wake(ARGV[i])
end
return lists
