-- PAUSE(kind, span_ms, reason, lane...): admit no key for the span, 0 = until resumed.
-- Touches paused (hash).
local kind, span, reason = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local pause = string.format('%d %s', span > 0 and now + span or 0, reason)
for i = 5, #ARGV do redis.call('HSET', K.paused, kind .. ' ' .. ARGV[i], pause) end
return string.format('%d', now)
