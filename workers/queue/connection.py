"""How do we talk to Redis, and what do its errors become?

Every command this package sends is safe to repeat (scripts answer a repeated request the same way
or do nothing), therefore the client may retry after a lost reply.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from workers.errors import QueueUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

# For those who only hand a client on.
RedisClient = redis.Redis

# Pitfalls 8: half-open connections are found within the time-out, a fail-over within the retries.
SOCKET_TIMEOUT_SECONDS = 5.0
RETRIES = 3


def connect(
    url: str,
    *,
    socket_timeout_seconds: float = SOCKET_TIMEOUT_SECONDS,
    max_connections: int | None = None,
) -> redis.Redis:
    """A thread-safe client; nothing is sent before the first command.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with the database the Celery broker uses.
        socket_timeout_seconds: bound of one command; a retry starts after it.
        max_connections: bound of the pool, None for none.
    """
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return redis.Redis.from_url(
        url,
        socket_timeout=socket_timeout_seconds,
        socket_connect_timeout=socket_timeout_seconds,
        health_check_interval=10,
        max_connections=max_connections,
        retry=Retry(ExponentialWithJitterBackoff(cap=1, base=0.05), RETRIES),
        decode_responses=False,
        **keepalive,
    )


@contextmanager
def redis_errors() -> Iterator[None]:
    """Turn every error of the redis library into the one the callers know.

    Raises:
        QueueUnavailable: Redis does not answer, is full, read-only, loading or refuses us.
    """
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable(f"redis: {error}") from error
