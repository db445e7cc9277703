"""How do we talk to Redis, and what do its errors become?

Every command this package sends is safe to repeat (scripts answer a repeated request the same way
or do nothing), therefore the client may retry after a lost reply.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

# redis-py loads OpenTelemetry's metrics if it can (for the extra `tracing` it can), which we do
# not use: 2.5 MiB in every process.
_telemetry = sys.modules.get("opentelemetry")
sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the documented way to forbid it
import redis  # noqa: E402
from redis.backoff import ExponentialWithJitterBackoff  # noqa: E402
from redis.retry import Retry  # noqa: E402

if _telemetry is None:
    del sys.modules["opentelemetry"]
else:
    sys.modules["opentelemetry"] = _telemetry

from workers.errors import QueueUnavailable  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

# For those who only hand a client on.
RedisClient = redis.Redis
ResponseError = redis.ResponseError
NoScriptError = redis.exceptions.NoScriptError

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
