"""Which Lease object does a sidecar use, and as whom? Who else in it is one of us?

Rules F-020, F-021, L-090.
Source: kubernetes-csi/csi-lib-utils, leaderelection/leader_election.go sanitizeName.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9-]")

# Names of one Redis that are remembered.
_MOST_NAMES: Final = 8

OURS: Final = "_csi-fleet-"
"""Part of our holder identities, which no sidecar's has."""


def sanitize_name(name: str) -> str:
    """Make a Lease name out of any text (F-020).

    `hostpath.csi.k8s.io` -> `hostpath-csi-k8s-io`; `a/b.c_d-` -> `a-b-c-d-X`. Distinct inputs can
    meet in one name (`a.b` and `a-b`), which is upstream's defect and part of the contract.
    """
    sanitized = _NOT_ALLOWED.sub("-", name)
    return sanitized + "X" if sanitized.endswith("-") else sanitized


def lease_name(driver_name: str) -> str:
    """Name of the Lease that the provisioner of one driver holds (F-020)."""
    return sanitize_name(driver_name.replace("/", "-"))


class LeaseIdentity:
    """As whom a process holds Leases, and which holders it shares the work with: its fellows.

    Fellows are the workers of one Redis, for there they see what each of them is about. Those of
    another one, a replica that brings its own for example, are strangers as a Go sidecar is.
    Nothing seals the name: drivers' workers have records keys of their own, and share Leases of no
    driver.

    Host and a part unique per process, so that pods can share a host: upstream uses the sanitised
    host name alone, and two pods with host networking on one node then both lead (F-021).

    Args:
        hostname: of the machine or pod.
        unique: not twice in the world.
    """

    def __init__(self, hostname: str, unique: str) -> None:
        self.unique = unique
        self.installation = ""
        self._host = sanitize_name(hostname)
        self._text = ""
        self._known: list[str] = []

    def __str__(self) -> str:
        """The `holderIdentity`; "" before the first `join`."""
        return self._text

    def join(self, installation: str) -> bool:
        """Take the name of our Redis; whether it is another one than before.

        After a loss of data it may have a new one. Who has not heard of that yet is still a fellow.
        """
        if installation == self.installation:
            return False
        mark = f"{OURS}{installation}-"
        self._known = [*self._known[-_MOST_NAMES:], mark]
        self._text = f"{self._host}{mark}{self.unique}"
        self.installation = installation
        return True

    def is_fellow(self, holder: str) -> bool:
        """Tell whether that holder of a Lease works by our Redis, or is this process."""
        return any(mark in holder for mark in self._known)
