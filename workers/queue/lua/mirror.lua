-- MIRROR(version, name, pause, ...): replace the operators' pauses with those of the API server at
-- that resourceVersion, and wake the lists of resumed drivers. A name is 'driver NAME' or 'class
-- NAME'; a pause is 'until_ms reason' by the Redis host's clock. A version older than the known one
-- changes nothing. A pause that was mirrored before keeps the end that it got then, 'end_ms
-- until_ms reason', so that a jump of the host's clock makes it neither longer nor shorter.
-- Touches pauses (hash), pauses_version (string), woken (flags). Idempotent.
-- Returns 1 if the pauses were stored, else 0, and the lists to wake.
local version = ARGV[2]
local known = redis.call('GET', K.pauses_version)
if known and is_newer(known, version) then return { 0 } end
local before, flat = {}, redis.call('HGETALL', K.pauses)
for i = 1, #flat, 2 do before[flat[i]] = flat[i + 1] end
redis.call('DEL', K.pauses)
for i = 3, #ARGV, 2 do
  local name, pause = ARGV[i], ARGV[i + 1]
  local until_ms = tonumber(string.match(pause, '^(%d+) ')) or 0
  local end_ms = until_ms > 0 and math.max(1, now + until_ms - host_now) or 0
  local kept = string.match(before[name] or '', '^%d+ (.*)$') == pause
  redis.call('HSET', K.pauses, name, kept and before[name] or string.format('%d %s', end_ms, pause))
end
-- No race lasts longer than a minute. After a restore of the API server's data, versions start
-- lower.
redis.call('SET', K.pauses_version, version, 'PX', 60000)
local is_resumed = {}
for name in pairs(before) do
  is_resumed[name] = redis.call('HEXISTS', K.pauses, name) == 0 or nil
end
if next(is_resumed) then
  for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
    if is_resumed['driver ' .. driver_of(lane)] then wake_lane(lane) end
  end
end
return { 1, unpack(lists) }
