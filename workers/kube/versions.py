"""Finds snapshot CRDs that are installed but do not serve the version that csi-fleet reads.

The API server returns Not Found for such a kind, as if its CRD were not installed at all. So old
CRDs would disable snapshots or group snapshots silently.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.paths import Resource
    from workers.kube.reading import KubeReader

_GROUPS: Final = frozenset({"snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"})
_REMEDY: Final = (
    "Install the CRDs of external-snapshotter: kubectl apply -k "
    "'https://github.com/kubernetes-csi/external-snapshotter/client/config/crd?ref=v8.6.0'"
)


def outdated(kube: KubeReader, resources: Iterable[Resource]) -> list[str]:
    """Return one problem, with its remedy, for each API group with snapshot CRDs that are too old.

    It is not a problem if a kind is not served in any version, because its CRD is optional. Every
    account is allowed to read what the API server serves.

    Args:
        kube: reads from the API server.
        resources: the kinds, each in the version that csi-fleet reads.

    Raises:
        ApiError: the API server does not answer.
    """
    ours = {resource for resource in resources if resource.group in _GROUPS}
    ordered = sorted(ours, key=lambda one: (one.group, one.plural))
    found = (
        _problem(kube, group, list(kinds))
        for group, kinds in groupby(ordered, key=lambda one: one.group)
    )
    return [problem for problem in found if problem]


def _problem(kube: KubeReader, group: str, kinds: list[Resource]) -> str:
    served = {version: kube.served_kinds(group, version) for version in kube.served_versions(group)}
    versions = {
        kind: sorted(version for version, known in served.items() if kind.kind in known)
        for kind in kinds
    }
    old = [kind for kind, found in versions.items() if found and kind.version not in found]
    if not old:
        return ""
    names = ", ".join(f"{kind.plural}.{group}" for kind in old)
    there = ", ".join(sorted({version for kind in old for version in versions[kind]}))
    wanted = ", ".join(sorted({kind.version for kind in old}))
    return (
        f"The CRDs {names} serve only {there}, but csi-fleet reads {wanted}. It does nothing for "
        f"these objects; all other work continues. {_REMEDY}"
    )
