"""Runs a controller's test world twice: first as a shadow, then for real in place of the sidecar.

```
expected = foresee(world, lambda: world.run(key))     # nothing is written, no driver called
world.run(key)
assert verdicts(world, expected) == {"volumeattachments/va": "agrees"}
```
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import msgspec
from google.protobuf.message import Message

from tests.support.fake_context import FakeWorld
from workers.drivers.standin import answer_to
from workers.engine.shadow.api import ShadowApi
from workers.engine.shadow.comparing import compare
from workers.engine.shadow.recording import Prediction, Views
from workers.kube.client import KubeClient
from workers.kube.resources import KubeResources
from workers.queue.leases import CURRENT

_tokens = itertools.count()


class Predictions:
    """Keeps the last prediction for each object."""

    def __init__(self) -> None:
        self.found: dict[str, Prediction] = {}

    def predict(self, key: Any, prediction: Prediction) -> None:
        del key
        earlier = self.found.get(prediction.path)
        base = prediction.base if earlier is None else earlier.base
        self.found[prediction.path] = Prediction(
            prediction.path,
            deepcopy(base),
            deepcopy(prediction.wanted),
            prediction.calls,
            prediction.at,
        )


class StandIn:
    """A stand-in for the driver that needs no connection; any call other than these is an error."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def call(self, method: str, request: Message, answer_type: type[Message], **_: Any) -> Message:
        self._views.called(method, {})
        return answer_to(request) or answer_type()


@contextmanager
def reading(world: FakeWorld) -> Iterator[ShadowApi]:
    """Yield a ShadowApi that reads from the test world; a request that it would send fails the
    test."""

    def request(_: Any, method: str, path: str, *, query: Any = None, **__: Any) -> bytes:
        assert method == "GET", f"a shadow sent {method} {path}"
        return msgspec.json.encode(world.api.get(urlsplit(path).path, query))

    with patch.object(KubeClient, "request", request):
        yield ShadowApi(SimpleNamespace)


def foresee(world: FakeWorld, act: Callable[[], object]) -> dict[str, Prediction]:
    """Run `act` as a shadow would; return its prediction for each object, by path."""
    kept = Predictions()
    marks, added = deepcopy(world.queue.marks), list(world.queue.added)
    kube, client, lease_of = world.context.kube, world.driver.client, world.lease
    with reading(world) as api:
        api.views.store = kept
        world.driver.client = StandIn(api.views)
        world.context.kube = world.context.effects.kube = KubeResources(api)

        def lease(key: Any) -> Any:
            made = lease_of(key)
            made.token = f"shadow-{next(_tokens)}"
            CURRENT.set(made)  # type: ignore[arg-type]
            return made

        world.lease = lease  # type: ignore[method-assign]
        try:
            act()
        finally:
            CURRENT.set(None)
            world.context.kube = world.context.effects.kube = kube
            world.driver.client = client
            world.lease = lease_of  # type: ignore[method-assign]
            world.queue.marks, world.queue.added = marks, added
            world.fails.clear()
            world.memos.clear()
            world.steps.reached.clear()
    return kept.found


def verdicts(world: FakeWorld, expected: dict[str, Prediction]) -> dict[str, str]:
    """Return how each prediction compares with the test world as it is now."""
    found = {}
    for path, one in expected.items():
        live = deepcopy(world.api.objects.get(path))
        verdict, differences = compare(path, one.base, one.wanted, live)
        short = "/".join(path.rsplit("/", 2)[-2:])
        found[short] = "; ".join((verdict.value, *differences))
    return found
