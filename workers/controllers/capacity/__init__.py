"""Publishes free space to the scheduler as CSIStorageCapacity objects (spec section 3).

`items`, `plan`, `objects`, `refresh` and `owners` only make decisions; the other modules of this
package call the driver and the API server.
"""
