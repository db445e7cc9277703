"""The Lua scripts, one per file; `lib.lua` and `lib_leases.lua` hold the functions they share."""
