"""Reads and writes one object during a reconcile, for every controller.

A `LivePass` holds the object as last read or written. All reads are live. A write is retried after
a conflict. It contains the object's uid, so that it never changes a newer object of the same name.
A finalizer is patched in the only way that cannot conflict. Each effect is announced, by the name
of its step, immediately before it happens. A reconcile that must stop early raises `Ended`, which
carries the outcome.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from csi_client import errors
from csi_client.errors import CsiError
from workers.deadlines import NONE, Deadline
from workers.engine.outcome import Ended, blocked, done
from workers.kube.errors import ConflictError, NotFoundError
from workers.kube.finalizers import has_finalizer
from workers.kube.merging import difference
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.observability.requests import about_volume
from workers.translate import secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from google.protobuf.message import Message

    from workers.drivers.driver import Driver
    from workers.engine.context import Context
    from workers.kube.events import EventType
    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource
    from workers.queue.keys import Key
    from workers.queue.leases import Lease, Session
    from workers.queue.locks import Lock
    from workers.translate.secrets import SecretRef

    Change = Callable[[JsonObject], JsonObject | None]

AnswerT = TypeVar("AnswerT", bound="Message")

_log = get_logger(__name__)

WRITE_TRIES: Final = 5
"""Number of conflicts in a row after which a write fails, and the reconcile with it."""


class Gone(Ended):
    """The object no longer exists, or its name now belongs to another object."""

    def __init__(self, reason: str = "the object is gone") -> None:
        super().__init__(done(reason))


@dataclass
class LivePass:
    """The reconcile of one object under a lease.

    Attributes:
        resource: the kind of the object.
        item: the object as it was last read or written.
    """

    context: Context
    key: Key
    lease: Lease
    resource: Resource
    item: JsonObject = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """The namespace in the key; "" for a cluster-scoped kind."""
        return self.key.object.rpartition("/")[0] if self.resource.namespaced else ""

    @property
    def name(self) -> str:
        """The object's name."""
        return self.key.object.rpartition("/")[2]

    @property
    def component(self) -> str:
        """The component that is named as the source of the events."""
        raise NotImplementedError

    def reach(self, step: str) -> None:
        """Announce an effect; raise LeaseLost if another worker has the lease."""
        self.context.effects.reach(step, self.lease)

    def acquire(self, *locks: Lock) -> None:
        """Take locks and hold them until the end of the reconcile.

        Raises:
            Ended: another key holds one of the locks; the reconciled key waits until that lock
                is released.
        """
        busy = self.context.queue.acquire(self.lease, *locks)
        if busy is not None:
            raise Ended(blocked(busy))

    def keep(self, step: str, mark: Mapping[str, Any]) -> None:
        """Store the key's mark (its state between reconciles) if it has changed; {} removes it."""
        if dict(self.lease.mark) != dict(mark):
            self.reach(step)
            self.context.effects.mark(self.lease, mark)

    # Reading.

    def read(self) -> bool:
        """Read the object; return False if no object has its name and the key's uid."""
        found = self.find(self.resource, self.name, self.namespace)
        if found is None or self.key.uid not in {"", found["metadata"]["uid"]}:
            return False
        self.item = found
        return True

    def find(self, resource: Resource, name: str, namespace: str = "") -> JsonObject | None:
        """Read any object; None if no object has that name.

        Raises:
            ApiError: the object cannot be read, or its kind is not served.
        """
        if not name:
            return None
        try:
            found = self.context.kube.get(resource, name, namespace=namespace)
        except NotFoundError as error:
            if not error.is_about(name):
                raise
            return None
        return {"apiVersion": resource.api_version, "kind": resource.kind, **found}

    # Writing.

    def write(self, step: str, change: Change, *, status: bool = False, **how: Any) -> bool:
        """Patch the reconciled object (see `write_to`); return True if anything was written."""

        def decide(item: JsonObject) -> JsonObject | None:
            self.item = item
            return change(item)

        found = self.write_to(self.resource, self.item, step, decide, status=status, **how)
        is_written, self.item = found is not self.item, found
        return is_written

    def write_status(self, step: str, change: Change) -> tuple[JsonObject, JsonObject] | None:
        """Write the complete status that `change` returns; do nothing if it returns None.

        Returns:
            The object before and after the write; None if nothing was written.
        """
        before = self.item

        def patch(item: JsonObject) -> JsonObject | None:
            nonlocal before
            before, new = item, change(item)
            return None if new is None else {"status": difference(item.get("status") or {}, new)}

        return (before, self.item) if self.write(step, patch, status=True) else None

    def write_to(
        self,
        resource: Resource,
        item: JsonObject,
        step: str,
        change: Change,
        *,
        status: bool = False,
        is_exact: bool = True,
        tries: int = WRITE_TRIES,
    ) -> JsonObject:
        """Patch an object; after a conflict, read it and call `change` again.

        Args:
            resource: the kind of the object.
            item: the object as it was read.
            step: the name of the effect.
            change: returns the merge patch for the object, or None to write nothing; may raise.
            status: True to patch the status subresource.
            is_exact: True to fail if the object has changed since it was read; False if the patch
                is right whatever else has changed in the object.
            tries: the number of conflicts after which the last one is raised.

        Returns:
            The object as stored; `item` itself if nothing was written.

        Raises:
            Gone: the object no longer exists.
            ApiError: the API server refused the write.
        """
        for tries_left in range(tries - 1, -1, -1):
            patch = change(item)
            if patch is None:
                return item
            self.reach(step)
            merge = self.context.effects.kube.merge
            try:
                return merge(resource, item, patch, status=status, is_exact=is_exact)
            except NotFoundError as error:
                raise _gone(error, item) from None
            except ConflictError:
                if not tries_left:
                    raise
                item = self._find_same(resource, item)
        raise AssertionError("tries must be at least 1")

    def add_finalizer(
        self, resource: Resource, item: JsonObject, step: str, finalizer: str
    ) -> JsonObject:
        """Add a finalizer to a built-in object in one request; return the object as stored.

        Raises:
            Gone: the object no longer exists.
            ApiError: the API server refused the write, for instance because the object is being
                deleted.
        """
        if has_finalizer(item, finalizer):
            return item
        return self._patch_finalizer(resource, item, step, finalizer, is_wanted=True)

    def remove_finalizer(
        self, resource: Resource, item: JsonObject, step: str, finalizer: str
    ) -> JsonObject:
        """Remove a finalizer; otherwise like `add_finalizer`."""
        if not has_finalizer(item, finalizer):
            return item
        return self._patch_finalizer(resource, item, step, finalizer, is_wanted=False)

    def _patch_finalizer(
        self, resource: Resource, item: JsonObject, step: str, finalizer: str, *, is_wanted: bool
    ) -> JsonObject:
        kube = self.context.effects.kube
        self.reach(step)
        try:
            patch = kube.add_finalizer if is_wanted else kube.remove_finalizer
            return patch(resource, item, finalizer)
        except NotFoundError as error:
            raise _gone(error, item) from None
        except ConflictError:  # caused by the uid or by a webhook
            self._find_same(resource, item)
            raise

    def _find_same(self, resource: Resource, item: JsonObject) -> JsonObject:
        metadata = item["metadata"]
        found = self.find(resource, metadata["name"], metadata.get("namespace") or "")
        if found is None or found["metadata"]["uid"] != metadata["uid"]:
            raise Gone from None
        return found

    # Informing users.

    def failure(self, message: str, **fields: Any) -> None:
        """Record an error in the key's history and log it."""
        trail.note("error", message)
        _log.warning("attempt failed", err=message, **fields)

    def event(
        self, kind: EventType, reason: str, message: str, item: Mapping[str, Any] | None = None
    ) -> None:
        """Send an event about `item`, or about the reconciled object if `item` is None.

        A warning is also recorded as a failure.
        """
        if kind == "Warning":
            self.failure(message, reason=reason)
        identity = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        self.context.effects.event(
            identity | dict(item or self.item), kind, reason, message, component=self.component
        )


@dataclass
class DriverPass(LivePass):
    """A `LivePass` whose key belongs to a CSI driver."""

    driver: Driver = field(kw_only=True)

    @property
    def component(self) -> str:
        """The driver's name; events name it as their source."""
        return self.driver.event_source

    def secret(self, reference: SecretRef | None) -> dict[str, str]:
        """Return the data of a secret, read live; empty if `reference` is None.

        Read the secret again for each call, and never keep its data.

        Raises:
            ApiError: the secret cannot be read.
            AttemptError: the secret's data is not text; the message contains no value.
        """
        if reference is None:
            return {}
        found = self.context.kube.get_secret(reference.namespace, reference.name)
        return secrets.decode(found, reference)

    def call(
        self,
        method: str,
        request: Message,
        answer_type: type[AnswerT],
        *,
        timeout_seconds: float,
        is_migrated: bool = False,
        **options: Any,
    ) -> AnswerT:
        """Call a method of the driver, for instance `Controller/ControllerPublishVolume`.

        Raises:
            CsiError: the driver returned an error or did not answer.
            DriverAway: the driver is not connected.
        """
        with about_volume(is_migrated=is_migrated):
            answer: AnswerT = self.context.effects.client(self.driver).call(
                method, request, answer_type, timeout_seconds=timeout_seconds, **options
            )
        return answer

    def pages(
        self,
        method: str,
        request: Callable[..., Message],
        answer_type: type[AnswerT],
        *,
        timeout_seconds: float,
        most_seconds: float,
        too_long: str,
    ) -> Iterator[AnswerT]:
        """Yield all pages of a list of the driver, for instance `Controller/ListVolumes`.

        Args:
            method: the method of the driver.
            request: builds the request for one page from `starting_token`.
            answer_type: the type of a page, which has a `next_token`.
            timeout_seconds: the deadline of each page.
            most_seconds: the longest time for all pages.
            too_long: the text of the error if the pages take longer.

        Raises:
            CsiError: a page failed, a page token was repeated, or the list took too long.
            DriverAway: the driver is not connected.
        """
        until, token, seen = time.monotonic() + most_seconds, "", set[str]()
        while True:
            ask = request(starting_token=token)
            page: Any = self.call(method, ask, answer_type, timeout_seconds=timeout_seconds)
            yield page
            token = page.next_token
            if not token:
                return
            problem = "the driver repeats a page token" if token in seen else ""
            if time.monotonic() > until:
                problem = too_long
            if problem:
                raise CsiError(errors.ABORTED, problem, rpc=f"/csi.v1.{method}")
            seen.add(token)


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The deadlines of the calls for one object that have an unknown outcome.

    Attributes:
        newest: the deadline of the last call; no deadline if its outcome is known.
        earlier: the latest deadline of the calls before the last one; the response to a later
            call does not reveal their outcome.
    """

    newest: Deadline = NONE
    earlier: Deadline = NONE

    @classmethod
    def read(cls, newest: object, earlier: object) -> Self:
        """Read both deadlines from JSON."""
        return cls(Deadline.read(newest), Deadline.read(earlier))

    def __bool__(self) -> bool:
        return bool(self.newest or self.earlier)

    def may_run_until(self, session: Session) -> Deadline:
        """Return the latest deadline of these calls; no deadline if every call has ended."""
        return session.latest(self.newest, self.earlier)

    def seconds_left(self, session: Session) -> float:
        """Return how long a call that undoes these calls has to wait; 0 if every call has ended."""
        return session.seconds_left(self.newest, self.earlier)

    def with_next(self, session: Session, timeout_seconds: float) -> Self:
        """Return the state to store before another call is sent."""
        earlier = self.may_run_until(session)
        return type(self)(session.deadline(timeout_seconds), earlier)

    def answered(self) -> Self:
        """Return the state in which the outcome of the newest call is known."""
        return replace(self, newest=NONE)


def _gone(error: NotFoundError, item: JsonObject) -> Exception:
    """Return `Gone` if the object is missing, or the error itself if its kind is not served."""
    return Gone() if error.is_about(item["metadata"]["name"]) else error
