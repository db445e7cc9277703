-- RESUME(kind, lane...): end one kind of pause, then admit. Touches paused (hash) and what ADMIT
-- touches. Returns the tickets to publish.
local kind = ARGV[2]
for i = 3, #ARGV do
  redis.call('HDEL', K.paused, kind .. ' ' .. ARGV[i])
  admit(ARGV[i])
end
return tickets
