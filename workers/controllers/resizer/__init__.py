"""Expansion and modification of volumes: what csi-resizer does (docs/spec, resizing).

`claim`, `decide`, `modifying`, `editing`, `request`, `results`, `marks` and `rules` are pure; calls
to driver and API server are made by `sync`, `expansion`, `modification`, `writing` and `offline`.
"""
