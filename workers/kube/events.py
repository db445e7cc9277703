"""Writes core/v1 Events, which show users what happened to their objects.

An event never delays or fails an attempt: it is queued in memory and written by separate threads, a
little later during a burst (workers.kube.eventqueue). It is dropped when the queue is full. Events
about the same object keep their order. The correlator limits and counts them (L-006).

The form of an Event is from client-go, tools/record/event.go makeEvent.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from workers.kube import paths
from workers.kube.client import STRATEGIC_PATCH
from workers.kube.correlator import EventCorrelator, EventPlan
from workers.kube.errors import AwayError, NotFoundError
from workers.kube.eventqueue import EventQueue
from workers.loop import Loop
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.kube.client import KubeClient
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)

# As in client-go.
QUEUE_SIZE: Final = 1000
_WRITE_ATTEMPTS: Final = 3
_RETRY_SECONDS: Final = 0.5
# A writer without events wakes this often, to show the liveness check that it is still running.
_LOOK_SECONDS: Final = 30.0
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MAX_NAME: Final = 253
# This only bounds memory: core/v1 has no limit, and client-go truncates nothing.
_MAX_MESSAGE: Final = 16 * 1024

EventType = Literal["Normal", "Warning"]


class EventRecorder:
    """Writes events asynchronously; one instance per process, thread-safe.

    Args:
        client: the API client.
        correlator: limits and counts the events; a new one by default.
        threads: the number of writers; events about one object always go to the same writer.
        queue_size: the number of events that each writer holds before new ones are dropped.
        now: returns the seconds since 1970.
        on_drop: called with a reason (`full`, `budget`, `refused`) for each event that is not
            written.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        correlator: EventCorrelator | None = None,
        threads: int = 2,
        queue_size: int = QUEUE_SIZE,
        now: Callable[[], float] = time.time,
        on_drop: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._client = client
        self._correlator = correlator or EventCorrelator()
        self._now = now
        self._on_drop = on_drop
        self._queues = [EventQueue(queue_size) for _ in range(threads)]
        self._loops: list[Loop] = []
        self._stopped = threading.Event()
        self._stop_at = float("inf")

    def start(self) -> None:
        """Start the writers."""
        for number, waiting in enumerate(self._queues):
            step = partial(self._write_some, number, waiting)
            self._loops.append(Loop(f"events-{number}", step))
        for loop in self._loops:
            loop.start()

    def event(
        self,
        involved: Mapping[str, Any],
        event_type: EventType,
        reason: str,
        message: str,
        *,
        component: str,
    ) -> None:
        """Queue one event about an API object, without waiting and without raising an exception.

        Args:
            involved: the object, with apiVersion, kind and metadata.
            event_type: `Normal` or `Warning`.
            reason: a CamelCase word, one of upstream's (L-005).
            message: the message for the user; it must not contain a secret.
            component: the event source, for example `external-provisioner` (L-004).
        """
        event = make_event(involved, event_type, reason, message, component, now=self._now())
        identity = f"{event['metadata']['namespace']}/{event['involvedObject'].get('name')}"
        waiting = self._queues[zlib.crc32(identity.encode()) % len(self._queues)]
        if not waiting.put(event):
            self._on_drop("full")

    def stop(self, *, timeout_seconds: float = 5.0) -> None:
        """Write queued events for at most `timeout_seconds`, then stop the writers. Idempotent."""
        self._stop_at = time.monotonic() + timeout_seconds
        self._stopped.set()
        for waiting in self._queues:
            waiting.close()
        for loop in self._loops:
            loop.join(max(0.0, self._stop_at - time.monotonic()))

    def _write_some(self, number: int, waiting: EventQueue) -> float:
        loop = self._loops[number]
        for event in waiting.take(_LOOK_SECONDS):
            if time.monotonic() > self._stop_at:
                loop.stop()
                break
            loop.beat()
            try:
                self._write(event, self._correlator.plan(event), loop.beat)
            except Exception as error:  # noqa: BLE001 - a failed event must not end the thread
                self._refused(event, error)
        if waiting.is_over:
            loop.stop()
        return 0.0

    def _refused(self, event: JsonObject, error: Exception) -> None:
        _log.warning("could not write an event", **_fields(event), err=error)
        self._on_drop("refused")

    def _write(self, event: JsonObject, plan: EventPlan, beat: Callable[[], None]) -> None:
        if plan.action == "drop":
            self._on_drop("budget")
            return
        event = {**event, "message": _shortened(plan.message), "count": plan.count}
        event["metadata"] = {**event["metadata"], "name": plan.name}
        for attempts_left in range(_WRITE_ATTEMPTS - 1, -1, -1):
            beat()
            try:
                self._send(plan.action, event)
            except AwayError:
                if not attempts_left or self._stopped.wait(_RETRY_SECONDS):
                    raise
            else:
                return

    def _send(self, action: str, event: JsonObject) -> None:
        metadata = event["metadata"]
        namespace = metadata["namespace"]
        if action == "patch":
            change = {key: event[key] for key in ("count", "lastTimestamp", "message")}
            path = paths.EVENTS.path(metadata["name"], namespace=namespace)
            try:
                self._client.patch(path, change, STRATEGIC_PATCH)
            except NotFoundError:
                pass  # the Event has expired: create it again, as client-go does
            else:
                return
        # `create` is not used here, because it would decode a response that is not needed.
        self._client.request("POST", paths.EVENTS.path(namespace=namespace), body=event)


def make_event(
    involved: Mapping[str, Any],
    event_type: str,
    reason: str,
    message: str,
    component: str,
    *,
    now: float,
) -> JsonObject:
    """Build an Event as client-go does; for a cluster-scoped object, in namespace `default`.

    Args:
        involved: the object, with apiVersion, kind and metadata.
        event_type: `Normal` or `Warning`.
        reason: a CamelCase word.
        message: the message for the user.
        component: the event source; also used as the reporting component.
        now: the current time in seconds since 1970.
    """
    metadata = involved.get("metadata") or {}
    reference = {
        "kind": involved.get("kind"),
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "apiVersion": involved.get("apiVersion"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {
            "name": event_name(str(metadata.get("name", "")), now),
            "namespace": metadata.get("namespace") or "default",
        },
        "involvedObject": {key: value for key, value in reference.items() if value},
        "reason": reason,
        "message": _shortened(message),
        "source": {"component": component},
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
        "type": event_type,
        "eventTime": None,
        "reportingComponent": component,
        "reportingInstance": "",
    }


def event_name(object_name: str, now: float) -> str:
    """Return `<object>.<hex nanoseconds>`; a UUID replaces an object name that is too long."""
    suffix = f"{int(now * 1e9):x}"
    name = f"{object_name}.{suffix}"
    if len(name) > _MAX_NAME or not _DNS_SUBDOMAIN.fullmatch(name):
        return f"{uuid.uuid4()}.{suffix}"
    return name


def _shortened(message: str) -> str:
    """Return the message, truncated to `_MAX_MESSAGE` bytes."""
    data = message.encode()
    if len(data) <= _MAX_MESSAGE:
        return message
    return data[: _MAX_MESSAGE - 3].decode("utf-8", "ignore") + "..."


def _fields(event: JsonObject) -> dict[str, Any]:
    return {"reason": event["reason"], "object": event["involvedObject"].get("name")}
