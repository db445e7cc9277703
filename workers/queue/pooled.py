"""How does a command get a connection of the pool, without redis-py's questions and measurements?

They take more CPU than the command. The pool asks each connection whether it is still open: a call
to the system, at which every other thread may run. Here a dead one is found by the command, whose
repetition connects anew. All else stays the pool's: it makes, counts and closes its connections.
"""
# ruff: noqa: SLF001 - the pool has no other way in

from __future__ import annotations

import os
from typing import Any


def take_open(pool: Any) -> Any:
    """The connection that was used last, None where it has none that is open in this process."""
    with pool._lock:
        rested = pool._available_connections
        if not rested or rested[-1]._sock is None or pool.pid != os.getpid():
            return None
        connection = rested.pop()
        pool._in_use_connections.add(connection)
        return connection


def give_back(pool: Any, connection: Any) -> None:
    """The pool has it again, or closes one that leads elsewhere by now."""
    if connection.should_reconnect() or not pool.owns_connection(connection):
        pool.release(connection)
        return
    with pool._lock:
        pool._in_use_connections.discard(connection)
        pool._available_connections.append(connection)
