"""The Lua scripts, one per file; `lib.lua`, `lib_leases.lua` and `lib_taking.lua` are shared."""
