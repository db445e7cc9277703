"""What is a controller, said as data?

A controller is one folder under `workers/controllers`. Its `spec.py` says, in the words of this
module, which kinds of keys it has, what the watcher watches for it, which flags, gates, rights and
Lease it has. Queue, watcher, tasks, limits, metrics, explain, docs and manifests are derived from
that; no name of a kind stands anywhere else. Everything here is light: no grpc, no Celery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from workers.config.flags import Flag
    from workers.config.gates import GateSpec
    from workers.kube.paths import Resource
    from workers.queue.keys import Key


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key.

    Attributes:
        name: first part of its keys, such as `attachments`.
        task: its Celery task, such as `attachments.sync`.
        work_queue: its name in upstream's workqueue metrics, such as `csi-attacher-va`.
        operations: its driver calls as limits, deadlines and breaker name them (`attach`); empty
            for kinds that only talk to the API server.
        subject: the resource its events, trail and `explain` are about; None for none.
        noun: the word for that in logs and on the command line, such as `va`.
        has_driver: False for kinds whose work belongs to no driver.
    """

    name: str
    task: str
    work_queue: str
    operations: tuple[str, ...] = ()
    subject: Resource | None = None
    noun: str = ""
    has_driver: bool = True


@dataclass(frozen=True, slots=True)
class Watch:
    """One resource that the watcher follows for a controller.

    Attributes:
        resource: what is listed and watched.
        item_type: msgspec struct of the fields that are kept while an event is handled; the same
            type for every controller that watches the resource.
        metadata_only: ask the API server for metadata alone.
        is_needed: told the driver records in use; the watch starts once it says True.
    """

    resource: Resource
    item_type: type[Any]
    metadata_only: bool = False
    is_needed: Callable[[Sequence[Mapping[str, Any]]], bool] = field(default=lambda _: True)


class Rules(Protocol):
    """What events mean to one controller: which keys have something to do.

    One object per watcher, called by several threads under the watcher's lock. It remembers no more
    than it needs of objects that wait for a decision. It may name too many keys (the worker then
    finds nothing to do), never too few.
    """

    def set_drivers(self, drivers: Sequence[Mapping[str, Any]]) -> Iterable[Key]:
        """Take in the records of the drivers in use; return keys that have work because of it."""

    def seen(self, resource: Resource, item: Any, *, is_listed: bool) -> Iterable[Key]:
        """Take in an object as it is now; return the keys with work because of it."""

    def gone(self, resource: Resource, item: Any) -> Iterable[Key]:
        """Take in a deletion; return the keys with work because of it."""

    def begin_list(self, resource: Resource) -> None:
        """A complete list starts: its objects follow by `seen`."""

    def end_list(self, resource: Resource) -> Iterable[Key]:
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
        read_settings: from flag values by name to the controller's own frozen settings.
        gates: its feature gates.
        permissions: its RBAC rules.
        needs_driver: False for controllers that run without any CSI driver.
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
