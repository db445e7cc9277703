-- RESUME(kind, target, class, lane...): end one kind of pause, then admit; target and class as for
-- PAUSE. Touches said (hash), paused (hash), class_pauses (hash). Returns the tickets to publish.
local kind, target, class = ARGV[2], ARGV[3], ARGV[4]
if target ~= '' then redis.call('HSET', K.said, target, string.format('%d', now)) end
if class ~= '' then redis.call('HDEL', K.class_pauses, class) end
for i = 5, #ARGV do
  redis.call('HDEL', K.paused, kind .. ' ' .. ARGV[i])
  admit(ARGV[i])
end
return tickets
