"""A client of the master for Flower, which runs in an event loop and asks one sentinel only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.queue.sentinels import SENTINEL_TIMEOUT_SECONDS, sentinel_login

# isort: split
# After the module that loads the library its own way.
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

if TYPE_CHECKING:
    from workers.config.redisurl import SentinelUrl


class MasterClient(Redis):
    """Closes with itself the connections to the sentinels, which Flower knows nothing of."""

    sentinels: tuple[Redis, ...] = ()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """As the base's."""
        await super().aclose(close_connection_pool)
        for sentinel in self.sentinels:
            await sentinel.aclose()


def async_master_client(url: SentinelUrl) -> MasterClient:
    """Connects with the first command, for one page of Flower's."""
    bounds: dict[str, Any] = {
        "socket_timeout": SENTINEL_TIMEOUT_SECONDS,
        "socket_connect_timeout": SENTINEL_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    tls = {"ssl": True, **url.tls} if url.tls else {}
    untyped: Any = Sentinel
    manager = untyped(
        url.hosts,
        sentinel_kwargs={**bounds, **tls, **sentinel_login(url)},
        db=url.database,
        **url.login,
        **bounds,
        **tls,
    )
    client: MasterClient = manager.master_for(url.master, redis_class=MasterClient)
    client.sentinels = tuple(manager.sentinels)
    return client
