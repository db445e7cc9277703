"""Reports at startup if Redis does not answer; Celery alone would only retry silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue.connection import connect_heartbeat, redis_errors

if TYPE_CHECKING:
    from workers.config.settings import Settings

_log = get_logger(__name__)


def ask_redis(settings: Settings) -> None:
    """Ping Redis once and log a failure; the caller continues in any case and retries."""
    redis = settings.redis
    client = connect_heartbeat(redis.url_with_credentials(), password_file=redis.password_file)
    try:
        with redis_errors():
            client.ping()
    except QueueUnavailable as error:
        _log.warning("waiting for Redis", url=redis.url, err=error)
    finally:
        client.close()
