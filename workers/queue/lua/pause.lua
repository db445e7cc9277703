-- PAUSE(lane, kind, span_ms, reason): nothing is admitted for the span, 0 = until resumed.
-- Touches paused (hash).
local span = tonumber(ARGV[4])
local until_ms = span > 0 and now + span or 0
redis.call('HSET', K.paused, ARGV[3] .. ' ' .. ARGV[2],
  string.format('%d %s', until_ms, ARGV[5]))
