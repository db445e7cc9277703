"""CSIStorageCapacity objects: what the scheduler is told about free space (spec section 3).

`items`, `plan`, `objects`, `refresh` and `owners` are pure decisions; calls to driver and API
server are made elsewhere in this package.
"""
