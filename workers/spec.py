"""Describes a controller as data.

A controller is one folder under `workers/controllers`. Its `spec.py` declares, with the classes of
this module, its kinds of keys, watches, flags, gates, permissions and Lease. Queue, watcher, tasks,
limits, metrics, explain, docs and manifests are derived from it; no other code names a kind. This
module loads neither gRPC nor Celery.
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
"""Key of the environment variables among the flag values for `Spec.read_settings`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key.

    Attributes:
        name: first part of its keys, such as `attachments`.
        task: its Celery task, such as `attachments.sync`.
        work_queue: its name in upstream's workqueue metrics, such as `csi-attacher-va`.
        operations: its driver calls, by the names for limits and deadlines (`attach`); empty for
            kinds that only use the API server.
        subject: the resource of its events, history and `explain`; None for none.
        noun: the word for the subject in logs and on the command line, such as `va`.
        has_driver: False for kinds whose work belongs to no driver.
        limits_each: True if its reconcile enforces the limit of each operation itself; the queue
            then has the widest limit, otherwise the narrowest.
        group_by: the field of a cluster-scoped subject that replaces the namespace in its keys; the
            queue is fair between its values.
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
    """The part of a resource that is watched; by default all objects."""

    namespace: str = ""
    label_selector: str = ""


EVERYWHERE: Final = (Scope(),)


def has_new_driver(before: Records, now: Records) -> bool:
    """Return True if `now` has a new driver; a new node of a known driver does not count."""
    return not {record["name"] for record in now} <= {record["name"] for record in before}


@dataclass(frozen=True, slots=True)
class Watch:
    """One resource that the watcher follows for a controller.

    Attributes:
        resource: the resource to list and watch.
        item_type: msgspec struct of the fields that the rules need; the same type for every
            controller that watches the resource.
        metadata_only: ask the API server only for metadata.
        is_needed: called with the records of the controller's drivers; the watch starts once it
            returns True.
        relists: called with these records before and after a change; True lists again, for Rules
            that keep nothing of objects of unknown drivers.
        catalog: the cached kind that the controller's workers read; "" for none.
        scopes: called with the records; returns the parts to watch. For such a resource the Rules
            get only `seen` and `gone`.
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
    """A key whose object is gone and needs no work: its counters are dropped, nothing is run."""

    key: Key


Told: TypeAlias = "Key | Forget"


class Rules(Protocol):
    """Maps events to the keys of one controller that need work.

    A watcher has one object, called by several threads under a lock. It remembers only what it
    needs of objects that wait for a decision. It may return too many keys (the worker then finds
    nothing to do), never too few.
    """

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Take the records of the controller's drivers; returns keys that now need work.

        Each record has at least the driver's `name` and its `queue_name`, the driver part of its
        keys. A driver whose workers are away is still included; in node deployment a node whose
        worker is away is not.
        """

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Take the current state of an object; returns keys that now need work."""

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Take a deleted object; returns keys that now need work."""

    def begin_list(self, resource: Resource) -> None:
        """A complete list starts: its objects follow as calls of `seen`."""

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects missing from the list as deleted; returns keys that now need work."""

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all objects that need work, for a resync or after data loss."""


@dataclass(frozen=True, slots=True)
class Permission:
    """One RBAC rule that a controller needs, and its feature; "" if it is always needed."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    feature: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """One controller as data.

    Attributes:
        name: name of its folder, and in `--controllers`.
        program: the Go sidecar that it replaces, also a command of csi-fleet (`csi-attacher`).
        kinds: its kinds of keys.
        watches: the resources that the watcher follows for it.
        make_rules: builds its `Rules`, once per watcher.
        lease_name: returns the name of the Go sidecar's Lease for a driver's name; None: no Lease.
        flags: the Go sidecar's flags that not all sidecars have, each with its default.
        read_settings: builds the controller's frozen settings from flag values by name;
            `feature-gates` has all gates there, `ENVIRONMENT` the environment.
        gates: its feature gates.
        permissions: its RBAC rules.
        needs_driver: False for controllers that run without any CSI driver.
        part_of: the controller that includes this one, such as `provisioner`; "" for none.
        asks: additional calls of the handshake: methods of CsiClient that return a set of names;
            for a driver that does not implement the call the set is empty.
        fatal_code: exit code if the handshake fails.
        unserved: error text if a worker in a driver's pod has no controller for the driver.
        unserved_code: exit code in that case.
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
