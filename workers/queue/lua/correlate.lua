-- CORRELATE(token, source+object+type, similar, message, new name, params...): create, patch or drop.
-- In a Redis that is nearly full a new message is dropped. The first three identities are digests.
-- Touches event:<digest> (hash), similar:<digest> (set),
-- spam:<digest> (hash), each with its TTL. The same token gets the same answer.
-- Returns {'create' | 'patch' | 'drop', name, count, is merged}.
local token, object, similar, message, name = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local max_similar, similar_ms = tonumber(ARGV[7]), tonumber(ARGV[8])
local burst, refill_ms, event_ms = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])

local messages = K.similar .. similar
local is_known = redis.call('SISMEMBER', messages, message) == 1
if not is_known and refused(FULL_SHARE) then return { 'drop', name, 0, 0 } end
local is_merged = not is_known and redis.call('SCARD', messages) >= max_similar
if not is_merged then redis.call('SADD', messages, message) end
redis.call('PEXPIRE', messages, string.format('%d', similar_ms))

local event = K.event .. similar .. (is_merged and '' or ':' .. message)
local known = redis.call('HMGET', event, 'name', 'count', 'token', 'answer')
if known[3] == token then
  return { known[4], known[1] or name, tonumber(known[2]) or 0, is_merged and 1 or 0 }
end

local bucket_key = K.spam .. object
local raw = redis.call('HMGET', bucket_key, 'tokens', 'at')
local tokens, at = tonumber(raw[1]) or burst, tonumber(raw[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) / refill_ms)
local answer, count = 'drop', tonumber(known[2]) or 0
if tokens >= 1 then
  tokens = tokens - 1
  answer = known[1] and 'patch' or 'create'
end
count = count + 1
local stored = known[1] or name
redis.call('HSET', bucket_key, 'tokens', string.format('%.17g', tokens), 'at', now)
redis.call('PEXPIRE', bucket_key, string.format('%d', burst * refill_ms))
if answer ~= 'drop' or known[1] then
  redis.call('HSET', event, 'name', stored, 'count', count, 'token', token, 'answer', answer)
  redis.call('PEXPIRE', event, string.format('%d', event_ms))
end
return { answer, stored, count, is_merged and 1 or 0 }
