"""What is known about one claim or volume at one moment, before anything is concluded from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers.explain.serving import NOBODY, Served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject
    from workers.queue.inspect import KeyState

# An object that is in such a state tells no reason, so what the queue and the watchers know counts.
NO_REASON: Final = frozenset(
    {
        "no-content",
        "no-finalizer",
        "not-made",
        "uploading",
        "not-copied",
        "deleting",
        "waits-for-content",
    }
)


@dataclass(frozen=True, slots=True)
class Quota:
    """One exhausted line of a ResourceQuota."""

    name: str
    resource: str
    used: str
    hard: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node that late binding chose.

    Attributes:
        exists: a Node of that name.
        csi_drivers: topology keys by driver of its CSINode, None when there is none.
        labels: of the Node.
    """

    name: str
    exists: bool
    csi_drivers: Mapping[str, tuple[str, ...]] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SecretFacts:
    """The provisioner secret of the class; `problem` is "" when it can be used."""

    namespace: str
    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """Everything about a claim.

    Attributes:
        claim: live; None when there is none of that name.
        hint: a name that is perhaps meant, as a sentence with a blank before it, or "".
        class_name: its class; "" when it names none.
        names_class: whether the claim says anything about a class (an empty name means: none).
        driver: record of its driver in the registry, None when no worker serves it.
        driver_name: the CSI driver behind the provisioner that its class names.
        served: the drivers whose workers run the provisioner, and the others.
        csi_driver_exists: a CSIDriver object of that name, None when it could not be asked.
        state: of its key, None when no queue name is known.
        volume: its PV, if there is one.
        pods: names of pods that use it; `pod_problem` why the first is not scheduled.
        last_error: newest warning event of ours on it: (message, seconds since 1970).
        source: `KIND.GROUP NAME` that a populator is to fill it from, "" for none.
        populator: the VolumePopulator of that kind, "" for none, None where they cannot be read.
        watchers: living watchers; workers: living worker processes.
    """

    namespace: str
    name: str
    now: float
    claim: JsonObject | None = None
    hint: str = ""
    class_name: str = ""
    names_class: bool = False
    storage_class: JsonObject | None = None
    driver_name: str = ""
    driver: Mapping[str, Any] | None = None
    served: Served = NOBODY
    csi_driver_exists: bool | None = None
    class_pause: str | None = None
    class_pause_until: float = 0.0
    state: KeyState | None = None
    volume: JsonObject | None = None
    quotas: tuple[Quota, ...] = ()
    node: NodeFacts | None = None
    secret: SecretFacts | None = None
    pods: tuple[str, ...] = ()
    pod_problem: str = ""
    last_error: tuple[str, float] | None = None
    source: str = ""
    populator: str | None = None
    watchers: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """Everything about a volume; fields as in ClaimFacts.

    Attributes:
        attachments: attachment -> node.
        owner: the driver that provisioned it, "" for none.
    """

    name: str
    now: float
    volume: JsonObject | None = None
    owner: str = ""
    driver: Mapping[str, Any] | None = None
    served: Served = NOBODY
    class_name: str = ""
    class_pause: str | None = None
    class_pause_until: float = 0.0
    state: KeyState | None = None
    attachments: Mapping[str, str] = field(default_factory=dict)
    last_error: tuple[str, float] | None = None
    watchers: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something waits, for a person.

    Attributes:
        code: one word per cause, stable for scripts.
        text: what blocks, in one sentence.
        advice: what to do about it, "" when there is nothing to do.
        until: when it ends by itself, seconds since 1970, 0 = does not or is not known.
        is_problem: False for a state that is as it should be.
    """

    code: str
    text: str
    advice: str = ""
    until: float = 0.0
    is_problem: bool = True
