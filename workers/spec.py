"""What is a controller, said as data?

A controller is one folder under `workers/controllers`. Its `spec.py` says, in the words of this
module, which kinds of keys it has, what the watcher watches for it, which flags, gates, rights and
Lease it has. Queue, watcher, tasks, limits, metrics, explain, docs and manifests are derived from
that; no name of a kind stands anywhere else. Everything here is light: no grpc, no Celery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from workers.config.flags import Flag
    from workers.config.gates import GateSpec
    from workers.kube.paths import Resource
    from workers.queue.keys import Key

    Records: TypeAlias = Sequence[Mapping[str, Any]]


ENVIRONMENT: Final = "environ"
"""Where `Spec.read_settings` finds the environment's variables among the flags' values."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key.

    Attributes:
        name: first part of its keys, such as `attachments`.
        task: its Celery task, such as `attachments.sync`.
        work_queue: its name in upstream's workqueue metrics, such as `csi-attacher-va`.
        operations: its driver calls as limits and deadlines name them (`attach`); empty
            for kinds that only talk to the API server.
        subject: the resource its events, trail and `explain` are about; None for none.
        noun: the word for that in logs and on the command line, such as `va`.
        has_driver: False for kinds whose work belongs to no driver.
        limits_each: its reconcile keeps the limit of each of its operations, so that the lane is as
            wide as the widest; else the narrowest limit of the operations holds for the lane.
        group_by: the field of a cluster-scoped subject that stands before its name in the keys,
            where others have a namespace: the queue is fair between its values.
    """

    name: str
    task: str
    work_queue: str
    operations: tuple[str, ...] = ()
    subject: Resource | None = None
    noun: str = ""
    has_driver: bool = True
    limits_each: bool = False
    group_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects of a resource are watched; the default is all of them."""

    namespace: str = ""
    label_selector: str = ""


EVERYWHERE: Final = (Scope(),)


def has_new_driver(before: Records, now: Records) -> bool:
    """Tell whether a driver came that was not known before (a new node of a known one does not)."""
    return not {record["name"] for record in now} <= {record["name"] for record in before}


@dataclass(frozen=True, slots=True)
class Watch:
    """One resource that the watcher follows for a controller.

    Attributes:
        resource: what is listed and watched.
        item_type: msgspec struct of the fields that are kept while an event is handled; the same
            type for every controller that watches the resource.
        metadata_only: ask the API server for metadata alone.
        is_needed: told the records of the controller's drivers; the watch starts once it is True.
        relists: told those records before and after a change; True lists again, for Rules that
            remember nothing of objects whose driver they do not know.
        catalog: the kind of the catalog that the controller's workers read; "" for none.
        scopes: told the records; the parts to follow. A resource with scopes of its own is told to
            the Rules by `seen` and `gone` alone.
    """

    resource: Resource
    item_type: type[Any]
    metadata_only: bool = False
    is_needed: Callable[[Records], bool] = field(default=lambda _: True)
    relists: Callable[[Records, Records], bool] = has_new_driver
    catalog: str = ""
    scopes: Callable[[Records], Iterable[Scope]] | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """A key without work whose object is gone: its counters are dropped, and no pass runs."""

    key: Key


Told: TypeAlias = "Key | Forget"


class Rules(Protocol):
    """What events mean to one controller: which keys have something to do.

    One object per watcher, called by several threads under the watcher's lock. It remembers no more
    than it needs of objects that wait for a decision. It may name too many keys (the worker then
    finds nothing to do), never too few.
    """

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Take in the records of the controller's drivers; return keys with work because of it.

        Each record has at least `name`, the driver's, and `queue_name`, the driver part of its
        keys. A driver whose workers are away stays in it; a node of a driver that serves on each
        node does not.
        """

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Take in an object as it is now; return the keys with work because of it."""

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Take in a deletion; return the keys with work because of it."""

    def begin_list(self, resource: Resource) -> None:
        """A complete list starts: its objects follow by `seen`."""

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat what the list did not contain as deleted; return the keys with work."""

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of everything undecided: after a resync or a lost Redis."""


@dataclass(frozen=True, slots=True)
class Permission:
    """One RBAC rule a controller needs, and for what; `feature` is "" for the base."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    feature: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """One controller as data.

    Attributes:
        name: its folder, and its word in `--controllers`.
        program: the Go sidecar it replaces, and its drop-in command (`csi-attacher`).
        kinds: its kinds of keys.
        watches: what the watcher follows for it.
        make_rules: builds its `Rules`, once per watcher.
        lease_name: from the driver's name to the Lease of the Go sidecar; None without one.
        flags: the Go sidecar's flags that are not common to all of them, each with its default.
        read_settings: from flag values by name to the controller's own frozen settings; the gates
            of `feature-gates` are complete there, the environment is under `ENVIRONMENT`.
        gates: its feature gates.
        permissions: its RBAC rules.
        needs_driver: False for controllers that run without any CSI driver.
        part_of: the controller that brings this one along, such as `provisioner`; "" for none.
        asks: what the handshake asks a driver besides, as methods of CsiClient that return a set
            of names; a driver that does not know such a call has none.
        fatal_code: exit code when the driver refuses the handshake.
        unserved: why a worker beside a driver ends when none of its controllers serves the driver.
        unserved_code: the exit code then.
    """

    name: str
    program: str
    kinds: tuple[Kind, ...]
    watches: tuple[Watch, ...]
    make_rules: Callable[[], Rules]
    lease_name: Callable[[str], str] | None = None
    flags: tuple[Flag, ...] = ()
    read_settings: Callable[[Mapping[str, Any]], Any] = field(default=dict)
    gates: tuple[GateSpec, ...] = ()
    permissions: tuple[Permission, ...] = ()
    needs_driver: bool = True
    part_of: str = ""
    asks: tuple[str, ...] = ()
    fatal_code: int = 1
    unserved: str = ""
    unserved_code: int = 255
