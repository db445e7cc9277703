-- PERIOD(name, span_ms): whether work of a period is due; the next period begins with a yes.
-- Touches period:<name> (string: ms of its end, PX). Returns 1 or 0.
return begins_period(ARGV[2], tonumber(ARGV[3])) and 1 or 0
