"""The effects of each reconcile, kept instead of done.

One `Views` per process is shared by the two ports that every effect goes through, the API client
and the driver's client. A reconcile sees its own writes, nobody else does: its view ends with its
lease.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from workers.queue.leases import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key

# More than reconciles can run at once in a process.
_MOST_VIEWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one reconcile would have made of one object.

    Attributes:
        path: the object's, in the API.
        base: as it was before; None: it did not exist.
        wanted: as it would be; None: deleted.
        calls: the driver calls until then, secrets stripped: method and request.
        at: unix seconds.
    """

    path: str
    base: JsonObject | None
    wanted: JsonObject | None
    calls: tuple[dict[str, Any], ...]
    at: float


class Store(Protocol):
    """Where predictions wait for the sidecar."""

    def predict(self, key: Key, prediction: Prediction) -> None:
        """Keep one; a later one of the same object replaces it."""


@dataclass(slots=True)
class View:
    """What one reconcile has seen and done.

    Attributes:
        token: of its lease.
        bases: objects as they were before its first write, by path.
        objects: objects as it left them; None: deleted.
        calls: its driver calls, secrets stripped.
    """

    token: str
    bases: dict[str, JsonObject | None] = field(default_factory=dict)
    objects: dict[str, JsonObject | None] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)


class Views:
    """The views of the reconciles that run; `store` is set once Redis is connected."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.store: Store | None = None
        self._now = now
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = threading.Lock()

    def current(self) -> View | None:
        """Of the reconcile that this thread runs; None outside of one."""
        lease = CURRENT.get()
        if lease is None:
            return None
        with self._lock:
            view = self._views.get(lease.key.text)
            if view is None or view.token != lease.token:
                view = self._views[lease.key.text] = View(lease.token)
            self._views.move_to_end(lease.key.text)
            while len(self._views) > _MOST_VIEWS:
                self._views.popitem(last=False)
        return view

    def called(self, method: str, request: Any) -> None:
        """A driver call was answered by the stand-in; `request` without secrets."""
        view = self.current()
        if view is not None:
            view.calls.append({"method": method, "request": request})

    def wrote(self, view: View, path: str, before: JsonObject | None) -> None:
        """The view's object at `path` is new; `before`: as it was until then."""
        view.bases.setdefault(path, before)
        lease, wanted = CURRENT.get(), view.objects[path]
        base = view.bases[path]
        if self.store is None or lease is None or base == wanted:
            return
        calls = tuple(view.calls)
        self.store.predict(lease.key, Prediction(path, base, wanted, calls, self._now()))
