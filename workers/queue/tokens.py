"""Names that nobody else gives, made without a call of the system.

`uuid4` and `os.urandom` ask the kernel each time and let another thread run meanwhile, which costs
ten times the name. Python seeds this generator from the kernel at the start and after each fork.
Who can guess such a name gains nothing: whoever may write to Redis can read them all.
"""

from __future__ import annotations

import random
from uuid import UUID

_BITS = 128


def new_token() -> str:
    """32 hex digits."""
    return f"{random.getrandbits(_BITS):032x}"


def new_uuid() -> str:
    """The same as a UUID."""
    return str(UUID(int=random.getrandbits(_BITS), version=4))
