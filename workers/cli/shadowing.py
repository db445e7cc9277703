"""Turns a worker process into a shadow: replaces its effects and starts the comparison."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from workers.drivers.pace import WatchedClient
from workers.drivers.standin import ShadowClient
from workers.engine.shadow.api import ShadowApi
from workers.engine.shadow.judging import Judge
from workers.kube.resources import KubeResources
from workers.loop import Loop
from workers.queue.shadows import Shadows

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.drivers.fleet import Fleet
    from workers.kube.client import KubeClient
    from workers.observability.metrics import Metrics
    from workers.queue.connection import RedisClient


class Shadowing:
    """The parts that make a worker process a shadow; without `--shadow`, they do nothing.

    Args:
        client: the API client of the process; if it is a `ShadowApi`, the process is a shadow.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._judge: Judge | None = None

    @property
    def make_client(self) -> Callable[..., WatchedClient]:
        """The factory for clients of drivers."""
        if isinstance(self._client, ShadowApi):
            return partial(ShadowClient, views=self._client.views)
        return WatchedClient

    def start(self, redis: RedisClient, metrics: Metrics, fleet: Fleet) -> None:
        """Start storing predictions."""
        if isinstance(self._client, ShadowApi):
            self._judge = self._client.views.store = Judge(
                Shadows(redis),
                KubeResources(self._client),
                metrics,
                drivers=lambda: [driver.name for driver in fleet.drivers()],
            )

    def loops(self) -> list[Loop]:
        """The loops to run in the background."""
        if self._judge is None:
            return []
        return [Loop("shadow", self._judge.step)]
