"""Compares what the sidecar did to an object with what the shadow would have done, without I/O.

Values that only the driver can know (handles, the sizes that it rounds, topology, contexts) are not
compared, because the shadow never asked the driver. For a created object, everything else is
compared in both directions. For a changed object, each field that the shadow would have changed is
compared.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from workers.translate import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.kube.objects import JsonObject


class Verdict(StrEnum):
    """The result of judging a prediction."""

    AGREES = "agrees"
    DIFFERS = "differs"
    WAITS = "waits"
    GONE = "gone"
    FAILED = "driver-failed"


UNKNOWN: Final = "csi-fleet-shadow"
"""The value that the stand-in for the driver returns for a name that only the driver can provide.
"""

_SERVER: Final = (
    r"metadata\.(uid|resourceVersion|generation|creationTimestamp|managedFields|selfLink"
    r"|deletionTimestamp|deletionGracePeriodSeconds|generateName)"
)
# Annotations, labels and finalizers that components other than the sidecar set.
_OTHERS: Final = (
    r"|metadata\.annotations\.pv\.kubernetes\.io/(bound-by-controller|bind-completed|migrated-to)"
    r"|metadata\.labels.*|metadata\.finalizers.*"
)
_DRIVERS: Final = {
    "persistentvolumes": r"|status.*|spec\.csi\.(volumeHandle|volumeAttributes.*)"
    r"|spec\.nodeAffinity.*|spec\.claimRef\.resourceVersion"
    # Fields that an in-tree source takes from the driver's volume context.
    r"|spec\.(gcePersistentDisk|awsElasticBlockStore)\.partition|spec\.vsphereVolume\.volumePath"
    r"|spec\.azureDisk\.(cachingMode|fsType)|spec\.azureFile\.secretNamespace"
    r"|metadata\.annotations\.kubernetes\.io/azure-file-resource-group",
    "persistentvolumeclaims": r"|status\.(capacity|conditions|allocatedResourceStatuses).*"
    r"|status\.phase",
    # These include fields from the driver's response, and an annotation that no sidecar writes
    # (MA-032).
    "volumeattachments": r"|status\.attachmentMetadata.*"
    r"|metadata\.annotations\.csi-fleet\.io/earlier-node-ids",
    "volumesnapshotcontents": r"|status\.(creationTime|restoreSize|snapshotHandle|readyToUse).*",
    "volumesnapshots": r"|status\.(creationTime|restoreSize|readyToUse).*",
    "volumegroupsnapshotcontents": r"|status\.(creationTime|readyToUse|.*Handle.*)",
    "volumegroupsnapshots": r"|status\.(creationTime|readyToUse)",
}
# Fields that contain the time of the write: they always differ between two writers.
_TIMES: Final = r"|.*\.(time|lastTransitionTime|lastProbeTime)"
_DEFAULTS: Final = {"spec.volumeMode": "Filesystem"}
_AT_LEAST: Final = re.compile(r"spec\.capacity\.storage")
_ERRORS: Final = ("attachError", "detachError", "error")
_IDENTITY: Final = ("type", "name", "uid")


def plural_of(path: str) -> str:
    """Return the plural resource name in an object's path, for example `persistentvolumes`."""
    return path.rsplit("/", 2)[-2]


def compare(
    path: str, base: JsonObject | None, wanted: JsonObject | None, live: JsonObject | None
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict, and the differences in human-readable form: `field: ours, theirs`.

    Args:
        path: the API path of the object.
        base: the object before the shadow's reconcile; None if it did not exist.
        wanted: the object as the shadow would have left it; None if it would have deleted it.
        live: the object as it is now; None if it does not exist.
    """
    if live is not None and base is not None and _uid(live) != _uid(base):
        live = None  # another object with that name
    if wanted is None or (wanted["metadata"].get("deletionTimestamp") and not _is_marked(base)):
        is_ended = live is None or _is_marked(live)
        return (Verdict.AGREES if is_ended else Verdict.WAITS), ()
    if live is None:
        return (Verdict.WAITS if base is None else Verdict.GONE), ()
    ignored = re.compile("(" + _SERVER + _TIMES + _DRIVERS.get(plural_of(path), "") + ")")
    if base is None:
        found = _created(wanted, live, ignored)
        return (Verdict.DIFFERS if found else Verdict.AGREES), found
    found = _changed(base, wanted, live, ignored)
    if not found:
        return Verdict.AGREES, ()
    if _has_new_error(base, live):
        return Verdict.FAILED, found
    return Verdict.WAITS, found


def _created(wanted: JsonObject, live: JsonObject, ignored: re.Pattern[str]) -> tuple[str, ...]:
    """Return all differences, in both directions, between csi-fleet's object and the sidecar's."""
    ours, theirs = dict(leaves(wanted)), dict(leaves(live))
    others = re.compile("(" + ignored.pattern + _OTHERS + ")")
    names = [one for one in sorted(ours.keys() | theirs.keys()) if not others.fullmatch(one)]
    found = [
        f"{name}: {_shown(ours.get(name))}, {_shown(theirs.get(name))}"
        for name in names
        if not _is_equal(name, ours.get(name), theirs.get(name))
    ]
    missing = set(wanted["metadata"].get("finalizers") or ()) - set(
        live["metadata"].get("finalizers") or ()
    )
    return (*found, *(f"metadata.finalizers: {one}, -" for one in sorted(missing)))


def _changed(
    base: JsonObject, wanted: JsonObject, live: JsonObject, ignored: re.Pattern[str]
) -> tuple[str, ...]:
    """Return the fields that the shadow would have changed but whose live values differ."""
    before, ours, theirs = (dict(leaves(one)) for one in (base, wanted, live))
    names = [
        name
        for name in sorted(before.keys() | ours.keys())
        if before.get(name) != ours.get(name) and not ignored.fullmatch(name)
    ]
    return tuple(
        f"{name}: {_shown(ours.get(name))}, {_shown(theirs.get(name))}"
        for name in names
        if not _is_equal(name, ours.get(name), theirs.get(name))
    )


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with its path; list members are identified by a key field, not by index."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, dict):
                named = next((inner[one] for one in _IDENTITY if one in inner), index)
                yield from leaves(inner, f"{place}[{named}]")
            else:
                yield f"{place}[{inner}]", inner
    elif value not in (None, "", {}):
        yield place, value


def _is_equal(name: str, ours: Any, theirs: Any) -> bool:
    if ours == theirs:
        return True
    if isinstance(ours, str) and UNKNOWN in ours:
        return theirs is not None
    if _AT_LEAST.fullmatch(name) and ours is not None and theirs is not None:
        return quantity.parse(theirs) >= quantity.parse(ours)  # the driver may provide more
    default = _DEFAULTS.get(name)
    return default is not None and {ours, theirs} <= {None, default}


def _has_new_error(base: JsonObject, live: JsonObject) -> bool:
    before, now = base.get("status") or {}, live.get("status") or {}
    return any(now.get(name) and now.get(name) != before.get(name) for name in _ERRORS)


def _is_marked(item: JsonObject | None) -> bool:
    return bool(((item or {}).get("metadata") or {}).get("deletionTimestamp"))


def _uid(item: JsonObject) -> str:
    return str(item["metadata"].get("uid", ""))


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)[:200]
