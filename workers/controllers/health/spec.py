"""Declares csi-external-health-monitor-controller, as rewritten for KEP-1432, as data (VH-040)."""

from __future__ import annotations

from typing import Final

from workers.controllers.health.rules import KIND, HealthRules
from workers.controllers.health.settings import FLAGS, read_settings
from workers.engine.leasename import sanitize_name
from workers.kube import paths
from workers.kube.objects import Volume
from workers.spec import Kind, Permission, Spec, Watch

PERMISSIONS: Final = (
    Permission("", ("persistentvolumes",), ("list", "watch"), "handle and claim of each volume"),
    Permission("", ("persistentvolumeclaims",), ("get", "list"), "the health as it is stored"),
    Permission("", ("persistentvolumeclaims/status",), ("patch",), "healthStatus"),
    Permission("", ("events",), ("create", "patch"), "conditions that healthStatus cannot hold"),
)


def lease_name(driver: str) -> str:
    """Return the name of the Go program's Kubernetes Lease (VH-041)."""
    return sanitize_name(f"external-health-monitor-leader-{driver}")


SPEC: Final = Spec(
    name="health",
    program="csi-external-health-monitor-controller",
    kinds=(
        Kind(
            KIND,
            task="health.poll",
            work_queue="csi-monitor-pv-queue",
            operations=("list-volume-health", "get-volume-health"),
            subject=paths.CLAIMS,
            noun="pvc",
        ),
    ),
    watches=(Watch(paths.VOLUMES, Volume, relists=lambda _before, _now: False),),
    make_rules=HealthRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    permissions=PERMISSIONS,
)
