"""The Lua scripts, one per file; the files `lib*.lua` have the functions that all scripts share."""
