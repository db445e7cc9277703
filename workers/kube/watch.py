"""Follows all objects of one kind: lists them in pages, then watches them, forever.

Invariants: no object is kept here; an object that cannot be read is logged and skipped, and never
ends the loop; the sink gets a complete list (`begin_list` .. `end_list`) after every gap, so that
it notices deletions that it missed.

It is not a failure if the server does not serve the kind (a CRD is not installed): the loop checks
for it periodically. A watch that delivers no data for `SILENCE_SECONDS`, not even a bookmark, is
reopened: its connection may be half open, or its server frozen. client-go's reflector does the
same; the official Python informer has neither bookmarks nor back-off.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from workers.backoff import Backoff
from workers.errors import ApiError
from workers.kube.client import JSON
from workers.kube.errors import GoneError, NotFoundError, error_from_status
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.kube.client import KubeClient, RawStream

_log = get_logger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

PAGE_SIZE: Final = 500
# A continue token expires after about 5 minutes. If listing takes longer with pages of 500, each
# retry requests pages that are larger by this factor.
_PAGE_GROWTH: Final = 4
_MAX_PAGE_SIZE: Final = 32_000
# The server ends a watch after a random time within these bounds, so that not all watches end at
# the same time.
_WATCH_SECONDS: Final = (240, 300)
# kube-apiserver sends a bookmark every minute. For a kind without bookmarks (one without a watch
# cache), a quiet watch is reopened this often, which costs one request.
SILENCE_SECONDS: Final = 90.0
# Timeout of `present_version`.
_PRESENT_SECONDS: Final = 10.0
# If a watch without an event ends earlier than this, it counts as a failure (client-go: very short
# watch).
_SHORT_WATCH_SECONDS: Final = 1.0
_REPEAT_LOG_SECONDS: Final = 60.0
# How often to check for a kind that the server does not serve.
LOOK_AGAIN_SECONDS: Final = 30.0
# Requests only metadata. A server that does not support this sends whole objects, which can be
# decoded in the same way.
METADATA_LIST: Final = (
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
)
METADATA_WATCH: Final = (
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
)


class Sink(Protocol[T_contra]):
    """Receives the objects; called only from the reflector's thread, and must not block."""

    def begin_list(self) -> None:
        """Prepare for a complete list; after a failure, this is called again without `end_list`."""

    def listed(self, item: T_contra) -> None:
        """Process one object of the list."""

    def end_list(self, resource_version: str) -> None:
        """Process the end of the list: objects that were not in it do not exist."""

    def changed(self, item: T_contra) -> None:
        """Process an object that was added or modified."""

    def deleted(self, item: T_contra) -> None:
        """Process an object that was deleted; its resourceVersion is that of the deletion."""


@dataclass(slots=True)
class ReflectorHealth:
    """The state of a reflector, for the health endpoint.

    Attributes:
        listed_at: `time.monotonic()` of the last complete list; None for never.
        event_at: `time.monotonic()` of the last event; None for never.
        lists: the number of complete lists.
        error: why listing or watching is failing; "" while it works.
        is_served: False while the API server does not serve the kind.
        is_watching: True while a watch is open and has not been silent for too long.
        version: the newest resourceVersion of any list, event or bookmark.
    """

    listed_at: float | None = None
    event_at: float | None = None
    lists: int = 0
    error: str = ""
    is_served: bool = True
    is_watching: bool = False
    version: str = ""

    @property
    def is_synced(self) -> bool:
        """Return True if the sink has received a complete list, or the kind is not served."""
        return self.lists > 0 or not self.is_served


class _ListMeta(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""
    # `continue` is a Python keyword.
    token: str = msgspec.field(default="", name="continue")


class _RawPage(msgspec.Struct, gc=False):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


class _ItemEvent(msgspec.Struct, Generic[T], gc=False):
    """An event with a well-formed object, which is the usual case."""

    type: str
    object: T


class _Versioned(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""


class _AnyObject(msgspec.Struct, gc=False):
    metadata: _Versioned = msgspec.field(default_factory=_Versioned)


# The types of events that are not passed to the sink.
_ABOUT_THE_WATCH: Final = frozenset({"BOOKMARK", "ERROR"})
_RAW_PAGE: Final = msgspec.json.Decoder(_RawPage)
_EVENT: Final = msgspec.json.Decoder(_Event)
_ANY: Final = msgspec.json.Decoder(_AnyObject)


@dataclass(slots=True)
class _Position:
    """How far the watch has progressed; an empty `resource_version` means that a list is due."""

    resource_version: str = ""
    events: int = 0
    unreadable_at: str | None = field(default=None)


class Reflector(Generic[T]):
    """Lists and watches one kind in one thread.

    Args:
        client: the API client.
        path: the path of the collection.
        item_type: the type to decode objects to: a struct of objects.py, or `dict` for whole
            objects.
        sink: receives the objects.
        metadata_only: whether to request PartialObjectMetadata.
        label_selector: selects the objects to follow by their labels; "" for all objects.
        backoff: the delays after failures.
        on_progress: called by the loop's thread after each round, page and event.
        look_again_seconds: the time between two checks for a kind that is not served.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        item_type: type[T],
        sink: Sink[T],
        *,
        metadata_only: bool = False,
        label_selector: str = "",
        backoff: Backoff | None = None,
        on_progress: Callable[[], None] = lambda: None,
        look_again_seconds: float = LOOK_AGAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.health = ReflectorHealth()
        self._client = client
        self._selector = {"labelSelector": label_selector} if label_selector else {}
        self._sink = sink
        self._item: msgspec.json.Decoder[T] = msgspec.json.Decoder(item_type)
        self._event = msgspec.json.Decoder(_ItemEvent[item_type])  # type: ignore[valid-type]  # known here only
        self._accept = (METADATA_LIST, METADATA_WATCH) if metadata_only else (JSON, JSON)
        self._backoff = backoff or Backoff()
        self._on_progress = on_progress
        self._look_again_seconds = look_again_seconds
        self._clock = clock
        self._stopped = threading.Event()
        self._relist = threading.Event()
        self._stream_lock = threading.Lock()
        self._stream: RawStream | None = None
        self._page_size = PAGE_SIZE
        self._heard_at = self._logged_at = float("-inf")

    def run(self) -> None:
        """List and watch until `stop` is called; an error of the API server never ends the loop."""
        position = _Position()
        while not self._stopped.is_set():
            self._on_progress()
            try:
                self._step(position)
            except GoneError:
                _log.info("the watch expired; listing the objects again", path=self.path)
                position.resource_version = ""
                self._wait()
            except NotFoundError:
                position.resource_version = ""
                self._not_served()
            except ApiError as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - the loop must outlive any defect
                # Most likely a defect in a sink; the next list delivers what the sink missed.
                _log.exception("unexpected error while watching", path=self.path)
                position.resource_version = ""
                self._failed(repr(error))

    def stop(self) -> None:
        """Make `run` return soon; thread-safe and idempotent."""
        self._stopped.set()
        # `run` does not list again after `stop`: this only ends its wait for a relist.
        self._relist.set()
        self._interrupt()

    def relist(self) -> None:
        """Start a new list soon, for a sink that has lost objects; thread-safe."""
        self._relist.set()
        self.health.version = ""
        self._interrupt()

    def present_version(self) -> str:
        """Return the current resourceVersion of the collection; thread-safe.

        A LIST request without a resourceVersion reads from etcd, so the result is current even if
        the watch lags behind.

        Raises:
            ApiError: the API server does not answer with a list.
        """
        query = {"limit": 1, **self._selector}
        data = self._client.list_raw(
            self.path, query, accept=METADATA_LIST, timeout_seconds=_PRESENT_SECONDS
        )
        return self._page(data).metadata.resource_version

    def _step(self, position: _Position) -> None:
        if self._relist.is_set():
            self._relist.clear()
            position.resource_version = ""
        if not position.resource_version:
            self.health.version = ""
            self.health.version = position.resource_version = self._list()
            position.unreadable_at = None
            self.health.lists += 1
            self.health.is_served = True
            self.health.listed_at = self.health.event_at = self._clock()
            self._recovered()
        started = self._clock()
        events_before = position.events
        self._watch(position)
        if self._is_interrupted():
            return
        if position.events == events_before and self._clock() - started < _SHORT_WATCH_SECONDS:
            self._wait()
        else:
            self._backoff.reset()

    def _list(self) -> str:
        """Pass one complete list to the sink; return its resourceVersion."""
        self._sink.begin_list()
        token = ""
        while True:
            query: dict[str, Any] = {"limit": self._page_size, **self._selector}
            if token:
                query["continue"] = token
            try:
                data = self._client.list_raw(self.path, query, accept=self._accept[0])
            except GoneError:
                self._page_size = min(self._page_size * _PAGE_GROWTH, _MAX_PAGE_SIZE)
                raise
            page = self._page(data)
            for raw in page.items or ():
                item = self._decoded(raw)
                if item is not None:
                    self._sink.listed(item)
            self._on_progress()
            if self._stopped.is_set():
                raise ApiError(0, "", "stopped")
            token = page.metadata.token
            if not token:
                self._sink.end_list(page.metadata.resource_version)
                return page.metadata.resource_version

    def _page(self, data: bytes) -> _RawPage:
        try:
            return _RAW_PAGE.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(0, "", f"{self.path}: the list is unreadable: {error}") from error

    def _watch(self, position: _Position) -> None:
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 - not a secret
        query = {
            "watch": "1",
            "resourceVersion": position.resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
            **self._selector,
        }
        stream = self._client.watch_raw(
            self.path,
            query,
            accept=self._accept[1],
            read_timeout_seconds=SILENCE_SECONDS,
        )
        with self._stream_lock:
            self._stream = stream
        self._heard_at = self._clock()
        try:
            self._recovered()
            if not self._is_interrupted():
                self.health.is_watching = True
                self._follow(stream.lines(), position)
        except ApiError:
            is_silent = self._clock() - self._heard_at >= SILENCE_SECONDS
            if not is_silent and not self._is_interrupted():
                raise
        finally:
            self.health.is_watching = False
            with self._stream_lock:
                self._stream = None
            stream.close()

    def _follow(self, lines: Iterator[bytes], position: _Position) -> None:
        for line in lines:
            if self._is_interrupted():
                return
            self._on_progress()
            self._apply(line, position)
            position.events += 1
            self.health.version = position.resource_version
            self._heard_at = self.health.event_at = self._clock()
            if position.events == 1:
                self._backoff.reset()

    def _apply(self, line: bytes, position: _Position) -> None:
        try:
            event = self._event.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._apply_parts(line, position)
            return
        if event.type in _ABOUT_THE_WATCH:
            self._apply_parts(line, position)
            return
        self._tell(event.type, event.object)
        if version := _version_of(event.object):
            position.resource_version = version

    def _apply_parts(self, line: bytes, position: _Position) -> None:
        """Decode, in steps, an event that is a bookmark, an error, or has a malformed object."""
        try:
            event = _EVENT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # This is the second unreadable line at this resourceVersion; only a new list can skip
            # it.
            if position.unreadable_at == position.resource_version:
                position.resource_version = ""
            position.unreadable_at = position.resource_version
            raise ApiError(0, "", f"{self.path}: unreadable watch event: {error}") from error
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object)
            raise error_from_status(status if isinstance(status, dict) else {})
        if event.type != "BOOKMARK":
            item = self._decoded(event.object)
            if item is not None:
                self._tell(event.type, item)
        if version := _version_in(event.object):
            position.resource_version = version

    def _tell(self, event_type: str, item: T) -> None:
        if event_type == "DELETED":
            self._sink.deleted(item)
        else:
            self._sink.changed(item)

    def _decoded(self, raw: msgspec.Raw) -> T | None:
        try:
            return self._item.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning(
                "skipped an object: one of its fields has an unexpected form",
                path=self.path,
                object=_name_of(raw),
                err=error,
            )
            return None

    def _is_interrupted(self) -> bool:
        return self._stopped.is_set() or self._relist.is_set()

    def _interrupt(self) -> None:
        with self._stream_lock:
            if self._stream:
                self._stream.interrupt()

    def _wait(self) -> None:
        self._stopped.wait(self._backoff.next_seconds())

    def _not_served(self) -> None:
        """Report all objects of the kind as deleted, and wait before the next check."""
        if self.health.is_served:
            _log.info(
                "the API server does not serve this kind yet; csi-fleet keeps checking for it",
                path=self.path,
            )
            if self.health.lists:
                self._sink.begin_list()
                self._sink.end_list("0")
        self.health.is_served, self.health.error, self.health.version = False, "", ""
        self._relist.wait(self._look_again_seconds)

    def _failed(self, message: str) -> None:
        if self._stopped.is_set():
            return
        now = self._clock()
        if not self.health.error or now - self._logged_at > _REPEAT_LOG_SECONDS:
            self._logged_at = now
            _log.warning(
                "could not list or watch; retrying",
                path=self.path,
                err=message,
            )
        self.health.error = message
        self._wait()

    def _recovered(self) -> None:
        if self.health.error:
            self.health.error = ""
            _log.info("listing and watching succeed again", path=self.path)


def _version_of(item: Any) -> str:
    try:
        found = msgspec.convert(item, _AnyObject) if isinstance(item, dict) else item
    except msgspec.ValidationError:
        return ""
    version: str = found.metadata.resource_version
    return version


def _version_in(raw: msgspec.Raw) -> str:
    try:
        return _ANY.decode(raw).metadata.resource_version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _name_of(raw: msgspec.Raw) -> str:
    """Return the namespace/name of an object that may have malformed fields.

    If the name cannot be read, return the start of the raw object.
    """
    try:
        decoded = msgspec.json.decode(raw)
        metadata = decoded["metadata"]
        return f"{metadata.get('namespace', '')}/{metadata['name']}"
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError):
        return bytes(raw)[:80].decode("utf-8", "replace")
