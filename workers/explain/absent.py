"""If an object does not exist, adds a similar name or an exhausted quota to its explanation.

The objects are listed once, and only for `explain`, so a cluster with many objects is not a problem
for `pending`.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from workers.explain.facts import Cause
from workers.explain.gather import OF_SNAPSHOTS, Gatherer
from workers.explain.quietly import quiet_list
from workers.explain.words import closest

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.explain.nouns import Noun

_SNAPSHOT: Final = "snapshot"


def hinted(tools: Tools, noun: Noun, namespace: str, name: str, cause: Cause) -> Cause:
    """Return the cause `not-found` with a hint; other causes are returned unchanged.

    Raises:
        Unreachable: the API server does not answer.
    """
    if cause.code != "not-found":
        return cause
    items = quiet_list(lambda: tools.kube.list(noun.resource, namespace=namespace))
    known = [str(one["metadata"]["name"]) for one in items]
    near = closest(name, known)
    if near:
        shown = shlex.quote(f"{namespace}/{near}" if namespace else near)
        hint = "" if "Did you mean" in cause.text else f' Did you mean "{near}"?'
        return replace(
            cause,
            text=f"{cause.text}{hint}",
            templates=(f"csi-fleet explain {noun.word} {shown}", "kubectl get {listing}"),
        )
    return (_of_quota(tools, namespace, name) if noun.word == _SNAPSHOT else None) or cause


def _of_quota(tools: Tools, namespace: str, name: str) -> Cause | None:
    """Return the cause if the namespace's quota on snapshots is used up, else None."""
    for quota in Gatherer(tools).quotas(namespace, OF_SNAPSHOTS):
        return Cause(
            "quota",
            f"There is no snapshot {namespace}/{name}, and the namespace's ResourceQuota "
            f"{quota.name} is used up: {quota.resource} {quota.used} of {quota.hard}. The API "
            "server refuses to create a snapshot that exceeds the quota.",
            "Delete other snapshots or raise the quota, then create the snapshot again.",
            names={"quota": quota.name},
        )
    return None
