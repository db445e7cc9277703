-- EPOCH(candidate, known, ttl_ms): return the epoch of this Redis' life; the first caller names it.
-- Touches epoch, quiet, fence (strings).
return begin_life(ARGV[2], ARGV[3], tonumber(ARGV[4]))
