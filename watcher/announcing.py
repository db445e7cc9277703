"""Tells people that this watcher lives: an entry in Redis, renewed every few seconds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from workers.errors import TransientError
from workers.queue.presence import TTL_SECONDS, Presence

if TYPE_CHECKING:
    from workers.queue.connection import RedisClient

ROLE: Final = "watcher"


class Announcing:
    """Renews the entry from a thread of its own until `stop`.

    Args:
        client: the Redis client.
    """

    def __init__(self, client: RedisClient) -> None:
        self._presence = Presence(client)
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self.run, name="presence", daemon=True).start()

    def run(self) -> None:
        """Renew until `stop`; a Redis that is away is told by others."""
        while not self._stopped.is_set():
            self.announce()
            self._stopped.wait(TTL_SECONDS / 3)

    def announce(self) -> bool:
        """Renew once; False while Redis does not answer."""
        try:
            self._presence.announce(ROLE)
        except TransientError:
            return False
        return True

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()
