-- CATALOG_READ(known_epoch, kind, known_version, ...): read the changes since that version, per
-- kind.
-- Touches epoch, complete, versions, floors, catalog:<kind>, changes:<kind>; writes nothing.
-- Returns {epoch, {kind, is complete, version, is full, {name, entry, ...}}...}; entry "" =
-- deleted.
local epoch = redis.call('GET', K.epoch) or ''
local reply = { epoch }
for i = 3, #ARGV, 2 do
  local kind, known = ARGV[i], tonumber(ARGV[i + 1])
  local is_complete = redis.call('HGET', K.complete, kind) == epoch and epoch ~= ''
  local version = tonumber(redis.call('HGET', K.versions, kind)) or 0
  local floor = tonumber(redis.call('HGET', K.floors, kind)) or 0
  local is_full = ARGV[2] ~= epoch or known < floor or known > version
  local flat = {}
  if is_full then
    flat = redis.call('HGETALL', K.catalog .. kind)
  elseif known < version then
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', K.changes .. kind,
        '(' .. string.format('%d', known), '+inf')) do
      flat[#flat + 1] = name
      flat[#flat + 1] = redis.call('HGET', K.catalog .. kind, name) or ''
    end
  end
  reply[#reply + 1] = { kind, is_complete and 1 or 0, string.format('%d', version),
    is_full and 1 or 0, flat }
end
return reply
