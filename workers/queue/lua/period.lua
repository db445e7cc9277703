-- PERIOD(name, span_ms): return 1 if the work of a period is due, and then begin the next period;
-- else 0.
-- Touches period:<name> (string: the ms of its end, PX).
return begins_period(ARGV[2], tonumber(ARGV[3])) and 1 or 0
