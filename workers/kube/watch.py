"""Keeping up with all objects of one kind: list by pages, then watch, for ever.

Invariants: no object is kept here; an object that cannot be read is logged and skipped, never
ends the loop; the sink sees a complete list (`begin_list` .. `end_list`) after every gap, so it
learns of deletions it missed. A kind that the server does not serve (a CRD that is not installed)
is no failure: it is looked for now and then. A watch that brings nothing for `SILENCE_SECONDS`, not
even a bookmark, is opened again: its connection may be half open, or its server frozen.
client-go's reflector does the same; the official Python informer has neither bookmarks nor
back-off (pitfalls 4.2).
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
# A continue token lives about 5 minutes; a cluster that cannot be listed in that time at 500 a
# page gets larger pages at each try.
_PAGE_GROWTH: Final = 4
_MAX_PAGE_SIZE: Final = 32_000
# Server-side end of a watch, spread so that watches do not all end together.
_WATCH_SECONDS: Final = (240, 300)
# kube-apiserver sends a bookmark each minute. Who serves none (a kind without watch cache) has its
# quiet watches opened again this often, which costs one request.
SILENCE_SECONDS: Final = 90.0
# How long a question for the present version may take.
_PRESENT_SECONDS: Final = 10.0
# A watch that ends sooner and brought nothing counts as a failure (client-go: very short watch).
_SHORT_WATCH_SECONDS: Final = 1.0
_REPEAT_LOG_SECONDS: Final = 60.0
# How often a kind is looked for that the server does not serve.
LOOK_AGAIN_SECONDS: Final = 30.0
# Metadata only; servers that cannot do it send whole objects, which decode just as well.
METADATA_LIST: Final = (
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
)
METADATA_WATCH: Final = (
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"
)


class Sink(Protocol[T_contra]):
    """Who is told; called from the reflector's one thread only, and must not block."""

    def begin_list(self) -> None:
        """A complete list starts; may come again without `end_list` after a failure."""

    def listed(self, item: T_contra) -> None:
        """One object of the list."""

    def end_list(self, resource_version: str) -> None:
        """The list is complete: what was not in it does not exist."""

    def changed(self, item: T_contra) -> None:
        """An object was added or modified."""

    def deleted(self, item: T_contra) -> None:
        """An object was deleted; its resourceVersion is that of the deletion."""


@dataclass(slots=True)
class ReflectorHealth:
    """What a health endpoint may show.

    Attributes:
        listed_at: `time.monotonic()` of the last complete list, None for never.
        event_at: the same of the last event.
        lists: how many lists were completed.
        error: why it cannot go on, "" when it can.
        is_served: False while the API server knows no such kind.
        is_watching: a watch is open, and was not silent for too long.
        version: the newest resourceVersion that a list, an event or a bookmark brought.
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
        """Whether all that exists was told since the start."""
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
    """An event whose object is as it should be: nearly all of them."""

    type: str
    object: T


class _Versioned(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""


class _AnyObject(msgspec.Struct, gc=False):
    metadata: _Versioned = msgspec.field(default_factory=_Versioned)


# Types of events that no sink is told of.
_ABOUT_THE_WATCH: Final = frozenset({"BOOKMARK", "ERROR"})
_RAW_PAGE: Final = msgspec.json.Decoder(_RawPage)
_EVENT: Final = msgspec.json.Decoder(_Event)
_ANY: Final = msgspec.json.Decoder(_AnyObject)


@dataclass(slots=True)
class _Position:
    """How far the watch has come; `resource_version` empty means: list first."""

    resource_version: str = ""
    events: int = 0
    unreadable_at: str | None = field(default=None)


class Reflector(Generic[T]):
    """One thread's loop over one kind.

    Args:
        client: the API client; needs one pooled connection for this loop.
        path: the collection.
        item_type: what an object decodes to: a struct of objects.py, or `dict` for all of it.
        sink: who is told.
        metadata_only: ask for PartialObjectMetadata.
        label_selector: look at objects with these labels only; "" for all.
        backoff: waits after failures.
        on_progress: called by the loop's thread whenever it got on: each round, page and event.
        look_again_seconds: between two looks for a kind that is not served.
        clock: monotonic seconds.
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
        """List and watch until `stop`; never raises for what the API server does."""
        position = _Position()
        while not self._stopped.is_set():
            self._on_progress()
            try:
                self._step(position)
            except GoneError:
                _log.info("watch expired, listing again", path=self.path)
                position.resource_version = ""
                self._wait()
            except NotFoundError:
                position.resource_version = ""
                self._not_served()
            except ApiError as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - the loop must outlive any defect
                # Most likely in a sink: the list that follows repairs what it missed.
                _log.exception("unexpected error while watching", path=self.path)
                position.resource_version = ""
                self._failed(repr(error))

    def stop(self) -> None:
        """End `run` soon; safe from any thread, also twice."""
        self._stopped.set()
        # Nothing is listed any more, but a wait for a relist ends.
        self._relist.set()
        self._interrupt()

    def relist(self) -> None:
        """List again soon, for a sink that lost what it was told; safe from any thread."""
        self._relist.set()
        self.health.version = ""
        self._interrupt()

    def present_version(self) -> str:
        """Ask which resourceVersion the present has; safe from any thread.

        A list without a resourceVersion is as new as etcd, whatever a watch brought.

        Raises:
            ApiError: the API server does not answer, or not with a list.
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
        """Send one complete list to the sink; returns its resourceVersion."""
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
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 - spread, no secret
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
        """Take what is no event of an object, or an object with an odd field, piece by piece."""
        try:
            event = _EVENT.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # The same line twice at one place: only a list can get past it.
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
                "object skipped: a field has an unexpected form",
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
        """Wait for the kind to be served; what there was of it is gone."""
        if self.health.is_served:
            _log.info("the API server does not serve this kind, looking for it", path=self.path)
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
                "cannot list or watch, trying again",
                path=self.path,
                err=message,
            )
        self.health.error = message
        self._wait()

    def _recovered(self) -> None:
        if self.health.error:
            self.health.error = ""
            _log.info("list and watch work again", path=self.path)


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
    """Return namespace/name of an object whose other fields may be odd, else its beginning."""
    try:
        decoded = msgspec.json.decode(raw)
        metadata = decoded["metadata"]
        return f"{metadata.get('namespace', '')}/{metadata['name']}"
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError):
        return bytes(raw)[:80].decode("utf-8", "replace")
