"""Declares keys, which name units of work.

A key is `<kind>|<driver>|<object>|<uid>` and can be read in Flower and in Redis. `|`, `%` and
control characters inside a part are percent-encoded, so that every key has exactly one string form
and can be parsed back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import unquote

KIND_CLAIMS: Final = "claims"
KIND_VOLUMES: Final = "volumes"
KIND_CAPACITY: Final = "capacity"
KIND_CLONING: Final = "cloning"
KIND_SWEEP: Final = "sweep"
# The default prefix of PV names; with it, users can find a PV's record.
RECORD_PREFIX: Final = "pvc-"

_UNSAFE = re.compile(r"[%|\x00-\x1f\x7f]")
_PARTS: Final = 4


def spelled(part: str) -> str:
    """Return one part of a key as it is spelled in Redis."""
    return _UNSAFE.sub(lambda match: f"%{ord(match.group()):02X}", part)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A key, which names one unit of work to reconcile.

    Args:
        kind: `claims`, `volumes`, `capacity`, `cloning`, ...; also the family of the Celery task.
        driver: the CSI driver's name; "" for work that belongs to no driver.
        object: `<namespace>/<name>` for claims, the PV name for volumes, the item for capacity.
        uid: the object's UID, so that a re-created claim has a different key (L-011). For a
            cluster-scoped object that belongs to a claim, this is `@` and the claim's namespace
            (the tenant). Otherwise it is "".

    Attributes:
        text: the string form of this key in Redis and in messages; stored because it is used often.
    """

    kind: str
    driver: str
    object: str
    uid: str = ""
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (self.kind, self.driver, self.object, self.uid)
        object.__setattr__(self, "text", "|".join(map(spelled, parts)))

    @property
    def driver_name(self) -> str:
        """The CSI driver's name, without the node if each node has its own controller."""
        return self.driver.partition("@")[0]

    @property
    def node(self) -> str:
        """The key's node, for a driver with a controller on each node; "" for other drivers."""
        return self.driver.partition("@")[2]

    @property
    def record_name(self) -> str:
        """The name of a claim's record; no flag changes it; "" for other kinds.

        The Lua function `record_name` computes the same name. If a driver has a controller on each
        node, every node has its own storage, and therefore its own record.
        """
        if self.kind != KIND_CLAIMS:
            return ""
        name = f"{RECORD_PREFIX}{spelled(self.uid)}"
        return f"{name}@{spelled(self.node)}" if self.node else name

    @property
    def lane(self) -> str:
        """The key's lane; a lane's keys share a concurrency limit, a rate and an order (G11)."""
        return f"{spelled(self.kind)}|{spelled(self.driver)}"

    @property
    def tenant(self) -> str:
        """The namespace that the key counts against in fair scheduling; "" if unknown."""
        namespace, slash, _ = self.object.partition("/")
        if slash:
            return namespace
        return self.uid[1:] if self.uid.startswith("@") else ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a key's string form.

        Raises:
            ValueError: the string is not a key; the message shows the expected form.
        """
        parts = text.split("|")
        if len(parts) != _PARTS or not parts[0]:
            raise ValueError(f"not a queue key (kind|driver|object|uid): {text!r}")
        return cls(*map(unquote, parts))


def claim_key(driver: str, namespace: str, name: str, uid: str) -> Key:
    """Return the key of a claim."""
    return Key(KIND_CLAIMS, driver, f"{namespace}/{name}", uid)


def volume_key(driver: str, name: str, namespace: str = "") -> Key:
    """Return the key of a PersistentVolume; `namespace` is its claim's (`spec.claimRef`)."""
    return Key(KIND_VOLUMES, driver, name, f"@{namespace}" if namespace else "")


def capacity_key(driver: str, item: str) -> Key:
    """Return the key of a unit of capacity work; `item` is the item's string form."""
    return Key(KIND_CAPACITY, driver, item)


def sweep_key(driver: str) -> Key:
    """Return the key of the sweep that removes snapshot finalizers."""
    return Key(KIND_SWEEP, driver, "snapshots")


def lane_name(kind: str, driver: str) -> str:
    """Return the lane of all keys of this kind and driver."""
    return Key(kind, driver, "").lane
