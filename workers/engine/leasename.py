"""Names a sidecar's Lease and this process in it, and recognises holders of the same Redis.

Rules F-020, F-021, L-090.
Source: kubernetes-csi/csi-lib-utils, leaderelection/leader_election.go sanitizeName.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9-]")

# Earlier names of this Redis that are remembered.
_MOST_NAMES: Final = 8

OURS: Final = "_csi-fleet-"
"""Part of every csi-fleet holder identity; no sidecar's identity contains it."""


def sanitize_name(name: str) -> str:
    """Make a Lease name out of any text (F-020).

    `hostpath.csi.k8s.io` -> `hostpath-csi-k8s-io`; `a/b.c_d-` -> `a-b-c-d-X`. Different inputs can
    give the same name (`a.b` and `a-b`): upstream's defect, kept for compatibility.
    """
    sanitized = _NOT_ALLOWED.sub("-", name)
    return sanitized + "X" if sanitized.endswith("-") else sanitized


def lease_name(driver_name: str) -> str:
    """Return the name of the Lease that the provisioner of a driver holds (F-020)."""
    return sanitize_name(driver_name.replace("/", "-"))


class LeaseIdentity:
    """Names this process as a holder of Leases, and recognises its fellows.

    Fellows are the workers of one Redis: there each of them sees what the others work on. Workers
    of another Redis, for instance a replica with a Redis of its own, are strangers like a Go
    sidecar. The name is not signed, because workers of different drivers have different signing
    keys, yet share the Leases that belong to no driver.

    The identity has the host name and a part that is unique per process. Upstream uses the
    sanitised host name alone, so two pods with host networking on one node both lead (F-021).

    Args:
        hostname: of the machine or pod.
        unique: text that no other process uses.
    """

    def __init__(self, hostname: str, unique: str) -> None:
        self.unique = unique
        self.installation = ""
        self._host = sanitize_name(hostname)
        self._text = ""
        self._known: list[str] = []

    def __str__(self) -> str:
        """Return the `holderIdentity`; "" before the first `join`."""
        return self._text

    def join(self, installation: str) -> bool:
        """Take the name of this Redis; return True if the name is new.

        Redis may be renamed when it loses its data. A holder with an old name is still a fellow.
        """
        if installation == self.installation:
            return False
        mark = f"{OURS}{installation}-"
        self._known = [*self._known[-_MOST_NAMES:], mark]
        self._text = f"{self._host}{mark}{self.unique}"
        self.installation = installation
        return True

    def is_fellow(self, holder: str) -> bool:
        """Return True if that holder of a Lease uses the same Redis, or is this process."""
        return any(mark in holder for mark in self._known)
