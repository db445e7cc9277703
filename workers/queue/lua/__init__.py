"""The Lua scripts, one per file; `lib.lua` holds the functions they share."""
