"""In-tree migration: translates classes and volumes of seven removed plugins to CSI and back.

Pure functions over decoded Kubernetes objects: no mutation, no I/O (P-600..P-608, P-610..P-614).
`plugins` is the table, `classes` translates StorageClasses, `to_in_tree` and `to_csi` translate
volumes; `zones`, `regions` and `handles` have the rules that they share.
"""
