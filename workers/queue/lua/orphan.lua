-- ORPHAN(key, (slot, name, record)...): a lost lease ended without an outcome. The records of its
-- attempt are restored unless a newer owner's records are stored, and the key is added again.
-- Touches the driver's slots and everything of the queue. Returns the lists to wake.
local key, lane = ARGV[2], lane_of(ARGV[2])
local driver = driver_part(key)
for i = 3, #ARGV, 3 do redis.call('HSETNX', K[ARGV[i]] .. driver, ARGV[i + 1], ARGV[i + 2]) end
if enqueue(key, lane, false) then wake(lane) end
return lists
