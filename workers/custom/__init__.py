"""Custom provisioners: the names for an author to import.

```
from workers.custom import Provisioner, ProvisionOptions, ProvisionResult, ProvisionError, State
```
These names are the whole public API (docs/custom-provisioners.md). Importing them does not load
gRPC, Redis or Celery. The other modules of this package are internal and can change.
"""

from __future__ import annotations

from workers.custom.api import (
    INVALID_ARGUMENT,
    Ignored,
    Options,
    Provisioner,
    ProvisionError,
    ProvisionOptions,
    ProvisionResult,
    VolumeStore,
)
from workers.errors import State

__all__ = [
    "INVALID_ARGUMENT",
    "Ignored",
    "Options",
    "ProvisionError",
    "ProvisionOptions",
    "ProvisionResult",
    "Provisioner",
    "State",
    "VolumeStore",
]
