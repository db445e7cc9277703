"""Records the effects of each reconcile instead of performing them.

Each process has one `Views`. Every effect goes through the API client or the driver's client, and
both share it. A reconcile sees its own writes, but no other reconcile does. Its view ends with its
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

# The maximum number of views; it exceeds the number of reconciles that can run at once in a
# process.
_MOST_VIEWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one reconcile would have done to one object.

    Attributes:
        path: the API path of the object.
        base: the object as it was before; None if it did not exist.
        wanted: the object as the reconcile would have left it; None if it would have deleted it.
        calls: the method and the request of each driver call so far, without secrets.
        at: the time of the prediction in seconds since 1970.
    """

    path: str
    base: JsonObject | None
    wanted: JsonObject | None
    calls: tuple[dict[str, Any], ...]
    at: float


class Store(Protocol):
    """Stores predictions until the sidecar has acted."""

    def predict(self, key: Key, prediction: Prediction) -> None:
        """Store a prediction; a later prediction for the same object replaces it."""


@dataclass(slots=True)
class View:
    """What one reconcile has seen and done.

    Attributes:
        token: the token of the reconcile's lease.
        bases: the objects as they were before the reconcile's first write, by path.
        objects: the objects after the reconcile's writes, by path; None for a deleted object.
        calls: the reconcile's driver calls, without secrets.
    """

    token: str
    bases: dict[str, JsonObject | None] = field(default_factory=dict)
    objects: dict[str, JsonObject | None] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)


class Views:
    """The views of the running reconciles; `store` is set once Redis is connected."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.store: Store | None = None
        self._now = now
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = threading.Lock()

    def current(self) -> View | None:
        """Return the view of the reconcile running in this thread; None outside a reconcile."""
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
        """Record a driver call that the stand-in has handled; `request` contains no secrets."""
        view = self.current()
        if view is not None:
            view.calls.append({"method": method, "request": request})

    def wrote(self, view: View, path: str, before: JsonObject | None) -> None:
        """Predict the view's new object at `path`; `before` is the object before this write."""
        view.bases.setdefault(path, before)
        lease, wanted = CURRENT.get(), view.objects[path]
        base = view.bases[path]
        if self.store is None or lease is None or base == wanted:
            return
        calls = tuple(view.calls)
        self.store.predict(lease.key, Prediction(path, base, wanted, calls, self._now()))
