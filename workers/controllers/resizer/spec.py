"""Declares csi-resizer as data: the flags, defaults and gates of external-resizer v2.2 (R-120)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.config.gates import GateSpec
from workers.controllers.resizer.rules import KIND, ResizerRules
from workers.controllers.resizer.settings import (
    FLAGS,
    GATE_ANNOTATE,
    GATE_ATTRIBUTES,
    GATE_RECOVERY,
    read_settings,
)
from workers.controllers.resizer.words import OPERATIONS
from workers.engine.leasename import sanitize_name
from workers.kube import paths
from workers.kube.objects import Attachment, AttributesClass, Claim, Volume
from workers.spec import Kind, Permission, Spec, Watch

if TYPE_CHECKING:
    from workers.spec import Records

GATES: Final = (
    GateSpec(
        GATE_RECOVERY,
        "GA",
        default=True,
        effect="Store the state of an expansion in the claim, so that the size can be lowered "
        "after a failed expansion.",
    ),
    GateSpec(
        GATE_ATTRIBUTES,
        "GA",
        default=True,
        effect="Apply a changed VolumeAttributesClass of a claim to its volume.",
    ),
    GateSpec(
        GATE_ANNOTATE,
        "BETA",
        default=True,
        effect="Record the previous size on the PV until the node has expanded the file system.",
    ),
)

PERMISSIONS: Final = (
    Permission(
        "", ("persistentvolumes",), ("get", "list", "watch", "patch"), "the size and its class"
    ),
    Permission("", ("persistentvolumeclaims",), ("get", "list", "watch"), "what is wanted"),
    Permission("", ("persistentvolumeclaims/status",), ("patch",), "states, conditions, result"),
    Permission("", ("events",), ("create", "patch"), "what happened, for the claim's owner"),
    Permission(
        "storage.k8s.io",
        ("volumeattributesclasses",),
        ("get", "list", "watch"),
        "parameters of the wanted class",
    ),
    Permission("", ("pods",), ("list",), "is a claim in use?", feature="in-use"),
    Permission(
        "storage.k8s.io",
        ("volumeattachments",),
        ("list", "watch"),
        "is a volume attached?",
        feature="in-use",
    ),
    Permission("", ("secrets",), ("get",), "credentials of the calls", feature="secrets"),
)
"""The permissions of R-122. Pods are never watched, and they are listed only after a driver refused
to expand a volume in use (DR-012).
"""


def lease_name(driver_name: str) -> str:
    """Return the name of csi-resizer's Kubernetes Lease for one driver (R-005, MR-051)."""
    return f"external-resizer-{sanitize_name(driver_name)}"


def _modifies(drivers: Records) -> bool:
    """Return True if a driver can modify volumes and the classes are served (R-002, DR-026)."""
    return any(
        "MODIFY_VOLUME" in (one.get("controller_capabilities") or ())
        and one.get("attributes_classes", True)
        for one in drivers
    )


def _is_refused_in_use(drivers: Records) -> bool:
    wanted = {"EXPAND_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"}
    return any(wanted <= set(one.get("controller_capabilities") or ()) for one in drivers)


SPEC: Final = Spec(
    name="resizer",
    program="csi-resizer",
    kinds=(
        Kind(
            KIND,
            task="changes.sync",
            work_queue="csi-resizer-pvc",  # one queue; csi-resizer has two with this name (DR-025)
            operations=OPERATIONS,
            limits_each=True,
            subject=paths.CLAIMS,
            noun="pvc",
        ),
    ),
    watches=(
        Watch(paths.CLAIMS, Claim),
        Watch(paths.VOLUMES, Volume),
        Watch(paths.ATTRIBUTES_CLASSES, AttributesClass, is_needed=_modifies),
        Watch(paths.ATTACHMENTS, Attachment, is_needed=_is_refused_in_use),
    ),
    make_rules=ResizerRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    gates=GATES,
    permissions=PERMISSIONS,
    asks=("expansion_modes", "node_capabilities"),
    unserved="CSI driver does not support resize nor modify",
)
