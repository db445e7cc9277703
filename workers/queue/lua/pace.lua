-- PACE(lane): a call of a lane with a rate is about to begin; reserve its turn among all workers'
-- calls.
-- Touches limits:<lane> (hash). Returns the ms to wait before the call.
local limits = K.limits .. ARGV[2]
local raw = redis.call('HMGET', limits, 'rate', 'burst', 'calls', 'calls_at')
local rate = tonumber(raw[1])
local tokens = bucket(rate, tonumber(raw[2]), tonumber(raw[3]), tonumber(raw[4])) - 1
if tokens == math.huge then return 0 end
redis.call('HSET', limits, 'calls', string.format('%.17g', tokens), 'calls_at', now)
return tokens < 0 and math.ceil(-tokens / rate * 1000) or 0
