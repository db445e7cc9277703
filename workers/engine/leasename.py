"""Which Lease object does a provisioner use, and as whom?

Rules F-020, F-021, L-090.
Source: kubernetes-csi/csi-lib-utils, leaderelection/leader_election.go sanitizeName.
"""

from __future__ import annotations

import re
from typing import Final

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9-]")

OURS: Final = "_csi-fleet-"
"""Part of our holder identities: one of us knows its fellows by it, and a stranger by its lack."""


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


def leader_identity(hostname: str, unique: str) -> str:
    """Who holds the Lease: host and a part unique per process, so that pods can share a host.

    Upstream uses the sanitised host name alone, and two pods with host networking on one node
    then both lead (F-021).
    """
    return f"{sanitize_name(hostname)}{OURS}{unique}"
