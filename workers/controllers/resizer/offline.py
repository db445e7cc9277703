"""Checks if a claim is in use, after its driver has refused to expand a published volume (R-080).

Pods and attachments are read at the time of the check; no process caches them (DR-012).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.kube import paths
from workers.kube.errors import ForbiddenError
from workers.translate.fields import object_list, text, value_at

if TYPE_CHECKING:
    from workers.kube.reading import KubeReader
    from workers.translate.fields import Json

_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
_ENDED = frozenset({"Succeeded", "Failed"})


def uses(pod: Json, claim_name: str) -> bool:
    """Return True if the pod, which is in the claim's namespace, uses the claim (R-081).

    Unscheduled pods count; finished pods do not. Unlike in csi-resizer, the claim of a generic
    ephemeral volume, `<pod>-<volume>`, counts too.
    """
    if text(pod, "status", "phase") in _ENDED:
        return False
    name = text(pod, "metadata", "name")
    for volume in object_list(pod, "spec", "volumes"):
        if text(volume, "persistentVolumeClaim", "claimName") == claim_name:
            return True
        is_ephemeral = value_at(volume, "ephemeral") is not None
        if is_ephemeral and f"{name}-{text(volume, 'name')}" == claim_name:
            return True
    return False


def is_in_use(kube: KubeReader, namespace: str, claim_name: str, volume_name: str) -> bool:
    """Return True if a pod uses the claim or an attachment names the volume."""
    pods = kube.list(paths.PODS, namespace=namespace, fieldSelector=_RUNNING)
    if any(uses(pod, claim_name) for pod in pods):
        return True
    try:
        return any(
            text(one, "spec", "source", "persistentVolumeName") == volume_name
            for one in kube.list(paths.ATTACHMENTS)
        )
    except ForbiddenError:
        return False  # csi-resizer's role does not have this permission; only pods are checked then
