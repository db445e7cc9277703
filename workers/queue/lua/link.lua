-- LINK(event, driver, kinds, process, open_ms, longest_ms, ...): record whether any process is
-- connected to a driver, and which of its replicas is called (workers/drivers/replica.py).
--   lost(reason)                  the process has no connection. If it was the last, the driver's lanes
--                                 are paused until a process is back, or until no process repeats `lost`
--   back(ttl_ms, address, serves) the process is connected and knows the driver. `address` names the
--                                 replica; it is "" if any replica of the driver may be called
-- `open_ms`: how long the process's calls may still run; `longest_ms`: the longest time of any
-- call.
-- Touches links:<driver> (zset), chosen:<driver> (string), paused (hash), epoch, all lanes.
-- Returns {lists to wake, 1 if the process may call the driver, ms until then, chosen address}.
local event, driver, kinds, process = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local open, longest = tonumber(ARGV[6]), tonumber(ARGV[7])
local LOST_MS = 15000
local links = K.links .. driver
local begin, calls, chosen =
  string.match(redis.call('GET', K.chosen .. driver) or '', '^(%d+) (%d+) (%S+)$')
begin, calls = tonumber(begin) or 0, tonumber(calls) or 0
local function choose(address)
  chosen = address
  redis.call('SET', K.chosen .. driver, string.format('%d %d %s', begin, calls, address))
end

redis.call('ZREM', links, process)
if chosen then
  -- A process that fell silent can have begun its last call only before its report expired.
  local silent = redis.call('ZRANGE', links, now, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  local last = math.max(calls, now + open, silent and tonumber(silent) + longest or 0)
  if last > calls and last > now then
    calls = last
    choose(chosen)
  end
end
redis.call('ZREMRANGEBYSCORE', links, '-inf', now)

if event == 'back' then
  local ttl, address, serves = tonumber(ARGV[8]), ARGV[9], ARGV[10] == '1'
  if address ~= '' and address ~= chosen then
    local birth = tonumber(string.match(redis.call('GET', K.epoch) or '', ':(%d+):')) or now
    local is_other = chosen and redis.call('ZCARD', links) > 0
    -- A Redis that began its life recently may have forgotten which replica others call. A
    -- connected process reports this within its ttl.
    local is_unsure = not chosen and not serves and now < birth + longest + LOST_MS
    if is_other or is_unsure then return { lists, 0, 0, chosen or '' } end
    begin = math.max(now, calls)
    choose(address)
  end
  redis.call('ZADD', links, now + ttl, process)
  redis.call('PEXPIRE', links, KEPT_MS)
end

local is_lost = redis.call('ZCARD', links) == 0
local until_ms, reason = now + LOST_MS, ARGV[8]
if not is_lost and chosen and begin > now then
  until_ms, reason = begin, 'its replica changed, calls at the old one may still run'
end
for kind in string.gmatch(kinds, '%S+') do
  local lane = kind .. '|' .. driver
  if is_lost or until_ms == begin then
    redis.call('HSET', K.paused, 'driver ' .. lane, string.format('%d %s', until_ms, reason))
  elseif redis.call('HDEL', K.paused, 'driver ' .. lane) == 1 then
    wake(lane)
  end
end
return { lists, 1, math.max(0, begin - now), chosen or '' }
