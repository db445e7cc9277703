-- EPOCH(candidate, known, ttl_ms): the life of this Redis; the first comer names it.
-- Touches epoch, quiet, fence (strings).
return begin_life(ARGV[2], ARGV[3], tonumber(ARGV[4]))
