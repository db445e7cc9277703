"""Expands and modifies volumes: the work of csi-resizer (docs/spec, resizing).

`claim`, `decide`, `modifying`, `editing`, `request`, `results`, `marks` and `rules` are pure. Only
`sync`, `expansion`, `modification`, `writing` and `offline` call the driver and the API server.
"""
