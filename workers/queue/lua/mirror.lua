-- MIRROR(version, name, pause, ...): make the operators' pauses those of the API server at that
-- resourceVersion, and admit what a resumed driver kept back. A name is 'driver NAME' or
-- 'class NAME', a pause 'until_ms reason'. An older version than the known one changes nothing.
-- Touches pauses (hash), pauses_version (string), lanes (set) and what ADMIT touches. Idempotent.
-- Returns 1 when taken, else 0, and the tickets to publish.
local version = ARGV[2]
local known = redis.call('GET', K.pauses_version)
if known and is_newer(known, version) then return { 0 } end
local before = redis.call('HKEYS', K.pauses)
redis.call('DEL', K.pauses)
for i = 3, #ARGV, 2 do redis.call('HSET', K.pauses, ARGV[i], ARGV[i + 1]) end
-- No race lasts longer; after a restore of the API server's data versions begin lower.
redis.call('SET', K.pauses_version, version, 'PX', 60000)
local is_resumed = {}
for _, name in ipairs(before) do
  is_resumed[name] = redis.call('HEXISTS', K.pauses, name) == 0 or nil
end
if next(is_resumed) then
  for _, lane in ipairs(redis.call('SMEMBERS', K.lanes)) do
    if is_resumed['driver ' .. driver_of(lane)] then admit(lane) end
  end
end
return { 1, unpack(tickets) }
