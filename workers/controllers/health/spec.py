"""Declares, as data, csi-external-health-monitor-controller rewritten for KEP-1432 (VH-040)."""

from __future__ import annotations

from typing import Final

from workers.controllers.health.settings import FLAGS, read_settings
from workers.engine.leasename import sanitize_name
from workers.kube import paths
from workers.kube.objects import Volume
from workers.queue.keys import Key
from workers.spec import Kind, NoRules, Permission, Spec, Watch

KIND: Final = "health"
PERMISSIONS: Final = (
    Permission("", ("persistentvolumes",), ("list", "watch"), "handle and claim of each volume"),
    Permission("", ("persistentvolumeclaims",), ("get", "list"), "the health as it is stored"),
    Permission("", ("persistentvolumeclaims/status",), ("patch",), "healthStatus"),
    Permission("", ("events",), ("create", "patch"), "conditions that healthStatus cannot hold"),
)


def poll_key(queue_name: str) -> Key:
    """Return the key of a driver's polls."""
    return Key(KIND, queue_name, "volumes")


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
            operations=("list-volume-health", "get-volume-health", "list-volumes", "get-volume"),
            subject=paths.CLAIMS,
            noun="pvc",
        ),
    ),
    # A poll reads what it needs. The PVs are followed because a watcher is ready only after it has
    # listed something, and notices a restored API server by what it follows.
    watches=(Watch(paths.VOLUMES, Volume, relists=lambda _before, _now: False),),
    make_rules=NoRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    permissions=PERMISSIONS,
)
