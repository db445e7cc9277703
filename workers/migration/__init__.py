"""In-tree migration: classes and volumes of seven removed in-tree plugins, as CSI and back.

Pure functions over decoded Kubernetes objects: nothing is mutated, nothing is asked of the network
(P-600..P-608, P-610..P-614). `plugins` is the table, `classes` translates storage classes,
`to_in_tree` and `to_csi` volumes; `zones`, `regions` and `handles` hold the rules they share.
"""
