"""The classes that describe a controller as data.

A controller is one folder under `workers/controllers`. Its `spec.py` uses the classes of this
module to declare its kinds of keys, watches, flags, feature gates, permissions and Lease. The
queue, watcher, tasks, limits, metrics, `explain`, docs and manifests are derived from it; no other
code contains the name of a kind. This module loads neither gRPC nor Celery.
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
"""The key under which the flag values for `Spec.read_settings` have the environment variables."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key.

    Attributes:
        name: the first part of the kind's keys, such as `attachments`.
        task: the kind's Celery task, such as `attachments.sync`.
        work_queue: the kind's name in upstream's workqueue metrics, such as `csi-attacher-va`.
        operations: the driver calls that the kind makes, under the names used for limits and
            deadlines (`attach`); empty for kinds that only use the API server.
        subject: the resource that the kind's events, history and explanations are about; None if
            there is none.
        noun: the word for the subject in logs and on the command line, such as `va`.
        has_driver: False if the kind's work belongs to no driver.
        limits_each: True if the reconcile itself enforces the limit of each operation; the
            queue then applies the widest of these limits. Otherwise, the queue applies the
            narrowest.
        group_by: the field of a cluster-scoped subject that takes the namespace's place in the
            subject's keys; the queue shares its turns fairly between the field's values.
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
    """The part of a resource to watch; by default, all its objects."""

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
        item_type: the msgspec struct with the fields that the rules need; the same type for
            every controller that watches the resource.
        metadata_only: True to request only the objects' metadata from the API server.
        is_needed: called with the records of the controller's drivers; the watch starts once it
            returns True.
        relists: called with the records before and after a change; if it returns True, the resource
            is listed again. Rules need this if they keep no data about unknown drivers' objects.
        catalog: the cached kind that the controller's workers read; "" for none.
        scopes: called with the records; returns the parts to watch. For a resource with scopes,
            only the methods `seen` and `gone` of the Rules are called.
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
    """A key whose object is gone: the key's counters are dropped, and nothing is reconciled."""

    key: Key


Told: TypeAlias = "Key | Forget"


class Rules(Protocol):
    """Maps events to the keys of one controller that need work.

    A watcher has one instance, which several threads call under a lock. The instance keeps only the
    data that it needs about objects that are waiting for a decision. It may return too many keys
    (the worker then finds nothing to do), but never too few.
    """

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Set the records of the controller's drivers; return the keys that now need work.

        Each record has at least the driver's `name` and its `queue_name` (the driver part of its
        keys). A driver is still included once its workers are gone. In node deployment, a node is
        no longer included once its worker is gone.
        """

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Process the current state of an object; return the keys that now need work."""

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Process the deletion of an object; return the keys that now need work."""

    def begin_list(self, resource: Resource) -> None:
        """Prepare for a complete list; `seen` is then called for each object of the list."""

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Treat objects missing from the list as deleted; return the keys that now need work."""

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all objects that need work, for a resync or after a loss of data."""


class NoRules:
    """Rules that ignore everything, for controllers whose keys are added on a schedule.

    A subclass overrides what it needs.
    """

    def set_drivers(self, drivers: Records) -> Iterable[Told]:
        """Ignore the drivers."""
        del drivers
        return ()

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Told]:
        """Ignore an object."""
        del resource, item, is_listed
        return ()

    def gone(self, resource: Resource, item: Any) -> Iterable[Told]:
        """Ignore a deletion."""
        del resource, item
        return ()

    def begin_list(self, resource: Resource) -> None:
        """Do nothing, because lists are ignored."""

    def end_list(self, resource: Resource) -> Iterable[Told]:
        """Do nothing, because lists are ignored."""
        del resource
        return ()

    def all_keys(self) -> Iterable[Key]:
        """Return nothing, because time adds the keys."""
        return ()


@dataclass(frozen=True, slots=True)
class Permission:
    """One RBAC rule that a controller needs.

    `feature` names the feature that needs the rule; "" if the rule is always needed.
    """

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    feature: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """One controller as data.

    Attributes:
        name: the name of the controller's folder, and its name in `--controllers`.
        program: the Go sidecar that the controller replaces; also the name of a csi-fleet command
            (`csi-attacher`).
        kinds: the controller's kinds of keys.
        watches: the resources that the watcher follows for the controller.
        make_rules: builds the controller's `Rules`, once per watcher.
        lease_name: returns the name of the Go sidecar's Lease for a driver's name; None if the
            controller has no Lease.
        flags: the Go sidecar's own flags (not those that all sidecars share), each with its
            default.
        read_settings: builds the controller's frozen settings from the flag values, keyed by flag
            name. The value of `feature-gates` contains all gates, and the value of `ENVIRONMENT`
            contains the environment variables.
        gates: the controller's feature gates.
        permissions: the controller's RBAC rules.
        needs_driver: False for controllers that run without any CSI driver.
        part_of: the controller that includes this one, such as `provisioner`; "" for none.
        asks: the additional methods of CsiClient that the handshake calls. Each returns a set of
            names; the set is empty if the driver does not implement the call.
        fatal_code: the exit code if the handshake fails.
        unserved: the error message if a worker in a driver's pod runs no controller for the driver.
        unserved_code: the exit code for `unserved`.
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
