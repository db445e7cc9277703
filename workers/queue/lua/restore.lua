-- RESTORE(target, said_ms, until_ms, reason, class, lane...): a pause that the API server remembers.
-- Without effect when it is over or something newer was said of the target here, also a resume.
-- Touches said (hash), paused (hash), class_pauses (hash). Idempotent. Returns 1 when written.
local target, said, until_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local reason, class = ARGV[5], ARGV[6]
local raw = redis.call('HGET', K.said, target)
local newest = raw and tonumber(raw)
if newest and newest >= said or until_ms ~= 0 and until_ms <= now then return 0 end
redis.call('HSET', K.said, target, string.format('%d', said))
local pause = string.format('%d %s', until_ms, reason)
if class ~= '' then redis.call('HSET', K.class_pauses, class, pause) end
for i = 7, #ARGV do redis.call('HSET', K.paused, 'operator ' .. ARGV[i], pause) end
return 1
