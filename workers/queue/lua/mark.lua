-- MARK(key, process, token, epoch, record): replace the key's mark; "" removes it. Repeatable.
-- Touches marks of the key's driver (hash), leases. Returns 1 = written, 0 = the lease is lost.
local key, record = ARGV[2], ARGV[6]
local marks = K.marks .. driver_part(key)
if not owned(key, ARGV[3], ARGV[4], ARGV[5]) then return 0 end
if record == '' then
  redis.call('HDEL', marks, key)
else
  local full = refused_if_new(marks, key)
  if full then return full end
  redis.call('HSET', marks, key, record)
end
return 1
