"""The facts about one claim or volume at one moment, and the causes derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from workers.explain.serving import NOBODY, Served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject
    from workers.queue.inspect import KeyState

# With these causes, the object itself gives no reason, so causes from the queue and the watchers
# are considered too.
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
    """One limit of a ResourceQuota that is exhausted."""

    name: str
    resource: str
    used: str
    hard: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The node that the scheduler chose for a late-binding claim.

    Attributes:
        exists: whether a Node of that name exists.
        csi_drivers: the topology keys of each driver, from the CSINode; None if there is no
            CSINode.
        labels: the labels of the Node.
    """

    name: str
    exists: bool
    csi_drivers: Mapping[str, tuple[str, ...]] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SecretFacts:
    """The provisioner secret of the class; `problem` is "" if the secret can be used."""

    namespace: str
    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot or claim that a claim should copy, but that cannot be copied now.

    Attributes:
        kind: `VolumeSnapshot` or `PersistentVolumeClaim`.
        name: the namespace and the name.
        is_deleting: whether it is being deleted; if not, it is not ready yet.
    """

    kind: str
    name: str
    is_deleting: bool


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """Everything that `explain` knows about a claim.

    Attributes:
        claim: the claim, read live; None if it does not exist.
        refusal: the kind and name of the workload whose controller could not create the claim,
            and its message; () if none is known.
        hint: a similar name, as a sentence with a leading space; "" if there is none.
        class_name: the name of the claim's class; "" if it has none.
        names_class: whether the claim sets a class name (an empty one means no class).
        driver: the registration of the claim's driver; None if no worker serves the driver.
        driver_name: the CSI driver that belongs to the class's provisioner.
        served: the drivers that workers serve, with and without the provisioner.
        csi_driver_exists: whether the driver's CSIDriver object exists; None if unknown.
        state: the state of the claim's key; None if no queue name is known.
        volume: the claim's PV; None if there is none.
        pods: the names of the pods that use the claim.
        pod_problem: why the first of these pods is not scheduled.
        pod_node: the node of the first of these pods that has one.
        last_error: our newest warning event about the claim: (message, Unix time).
        source: `KIND.GROUP NAME` from which a populator must fill the claim; "" for none.
        populator: the VolumePopulator of that kind; "" for none, None if unreadable.
        missing_source: the claim or snapshot to copy from, if it does not exist.
        missing_crd: the name of the CRD of that source's kind, if the kind itself is missing.
        waiting_source: the claim or snapshot to copy from, if it cannot be copied now.
        ready_source: the claim or snapshot to copy from, if it can be copied.
        source_driver: the driver that has its data; "" if unknown.
        class_problem: why the class's parameters cannot be used; "" if they can.
        missing_attributes_class: the claim's VolumeAttributesClass, if it does not exist.
        unreadable: the API server's message if the user must not read the class; "" otherwise.
        warning: the newest warning event about the claim, whoever wrote it; "" if there is none.
        watchers: the number of watchers that are alive.
        workers: the number of worker processes.
    """

    namespace: str
    name: str
    now: float
    claim: JsonObject | None = None
    refusal: tuple[str, str, str] | tuple[()] = ()
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
    pod_node: str = ""
    last_error: tuple[str, float] | None = None
    source: str = ""
    populator: str | None = None
    missing_source: str = ""
    missing_crd: str = ""
    waiting_source: Source | None = None
    ready_source: str = ""
    source_driver: str = ""
    class_problem: str = ""
    missing_attributes_class: str = ""
    unreadable: str = ""
    warning: str = ""
    watchers: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """Everything that `explain` knows about a volume; the other fields are as in ClaimFacts.

    Attributes:
        attachments: attachment name -> node.
        is_claim_deleting: whether the claim that the volume is bound to is being deleted.
        owner: the driver that provisioned the volume; "" if there is none.
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
    is_claim_deleting: bool = False
    last_error: tuple[str, float] | None = None
    watchers: int = 0
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """The reason that an object is waiting, in human-readable form.

    Attributes:
        code: one word, stable for scripts.
        text: the problem, in one sentence.
        advice: the remedy; "" if there is nothing to do.
        until: the Unix time at which the wait ends by itself; 0 if it does not, or if the time is
            unknown.
        is_problem: False for a state that needs no action.
        names: further names for the commands, such as `node` or `secret`.
        move: who can resolve this cause; "" if that depends only on the code
            (`workers.explain.moves`).
        templates: the commands to run next, without names; None if they depend only on the code
            (`workers.explain.commands`).
        commands: the commands to run next; empty if they are not filled in yet, or if nobody has
            to act.
    """

    code: str
    text: str
    advice: str = ""
    until: float = 0.0
    is_problem: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    move: str = ""
    templates: tuple[str, ...] | None = None
    commands: tuple[str, ...] = ()

    def with_names(self, **names: str) -> Cause:
        """Return the cause with further names; a name that it already has is kept."""
        return replace(self, names={**names, **self.names})
