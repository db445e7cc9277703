-- PAUSE(kind, span_ms, reason, target, class, lane...): nothing is admitted for the span, 0 = until
-- resumed. An operator's word names its target, and from now on nothing older is restored; in one
-- step, so that of two words the newer one counts. Touches said (hash), paused (hash), class_pauses
-- (hash). Returns the time in ms.
local kind, span, reason, target, class = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]
local pause = string.format('%d %s', span > 0 and now + span or 0, reason)
if target ~= '' then redis.call('HSET', K.said, target, string.format('%d', now)) end
if class ~= '' then redis.call('HSET', K.class_pauses, class, pause) end
for i = 7, #ARGV do redis.call('HSET', K.paused, kind .. ' ' .. ARGV[i], pause) end
return string.format('%d', now)
