-- RESUME(lane, kind): end one kind of pause, then admit. Returns the tickets to publish.
-- Touches paused (hash).
redis.call('HDEL', K.paused, ARGV[3] .. ' ' .. ARGV[2])
admit(ARGV[2])
return tickets
