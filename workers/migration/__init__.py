"""In-tree migration: translates classes and volumes of seven removed plugins to CSI and back.

All functions are pure functions on decoded Kubernetes objects, without mutation or I/O
(P-600..P-608, P-610..P-614). `plugins` has the table of plugins, `classes` translates
StorageClasses, and `to_in_tree` and `to_csi` translate volumes. `zones`, `regions` and `handles`
have the rules that these modules share.
"""
