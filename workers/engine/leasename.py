"""Builds the names of a sidecar's Lease and its holder; recognises a holder's peers.

Rules F-020, F-021, L-090.
Source: kubernetes-csi/csi-lib-utils, leaderelection/leader_election.go sanitizeName.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9-]")

# The number of earlier names of this Redis to remember.
_MOST_NAMES: Final = 8

OURS: Final = "_csi-fleet-"
"""A part of the identity of every csi-fleet holder; no sidecar's identity contains it."""


def sanitize_name(name: str) -> str:
    """Convert any string to a Lease name (F-020).

    `hostpath.csi.k8s.io` -> `hostpath-csi-k8s-io`; `a/b.c_d-` -> `a-b-c-d-X`. Different inputs can
    give the same name (`a.b` and `a-b`); this is an upstream defect, kept for compatibility.
    """
    sanitized = _NOT_ALLOWED.sub("-", name)
    return sanitized + "X" if sanitized.endswith("-") else sanitized


def lease_name(driver_name: str) -> str:
    """Return the name of the Lease that a driver's provisioner holds (F-020)."""
    return sanitize_name(driver_name.replace("/", "-"))


class LeaseIdentity:
    """The identity under which this process holds Leases, also used to recognise its peers.

    Peers, called fellows in the code, are the workers of one Redis, where each worker sees what the
    others are working on. Workers of another Redis, for instance a replica with its own Redis, are
    foreign holders like a Go sidecar. The name is not signed: workers of different drivers have
    different signing keys, but share the Leases that belong to no driver.

    The identity contains the host name and a part that is unique per process. Upstream uses only
    the sanitised host name, so two pods with host networking on one node would both lead (F-021).

    Args:
        hostname: the name of the machine or pod.
        unique: a string that no other process uses.
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
        """Use the given name of this Redis; return True if the name is new.

        Redis may get a different name after it has lost its data. A holder that is still using an
        old name is a peer.
        """
        if installation == self.installation:
            return False
        mark = f"{OURS}{installation}-"
        self._known = [*self._known[-_MOST_NAMES:], mark]
        self._text = f"{self._host}{mark}{self.unique}"
        self.installation = installation
        return True

    def is_fellow(self, holder: str) -> bool:
        """Return True if this holder of a Lease is this process or a worker of the same Redis."""
        return any(mark in holder for mark in self._known)
