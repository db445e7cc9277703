"""A connection goes back to the pool it is of, unless it leads elsewhere by now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from workers.queue import pooled


class Connection:
    """One that was connected; `leads_on`: to the server that it should."""

    def __init__(self, *, leads_on: bool = True) -> None:
        self.leads_on, self.pid, self._sock = leads_on, 0, object()
        self.ended = 0

    def should_reconnect(self) -> bool:
        return not self.leads_on

    def disconnect(self) -> None:
        self.ended += 1

    def re_auth(self) -> None:
        """The library asks each that comes back; nothing to do."""

    def reset_should_reconnect(self) -> None:
        self.leads_on = True


@pytest.fixture
def pool() -> Any:
    return redis.ConnectionPool()


def lent(pool: Any, connection: Connection) -> Connection:
    connection.pid = pool.pid
    with pool._lock:
        pool._in_use_connections.add(connection)
    return connection


def test_a_good_one_is_the_next_to_be_taken(pool: Any) -> None:
    connection = lent(pool, Connection())
    pooled.give_back(pool, connection)
    assert connection.ended == 0
    assert not pool._in_use_connections
    assert pooled.take_open(pool) is connection
    assert pool._in_use_connections == {connection}


def test_one_that_leads_elsewhere_is_closed_by_the_pool(pool: Any) -> None:
    connection = lent(pool, Connection(leads_on=False))
    pooled.give_back(pool, connection)
    assert connection.ended == 1
    assert not pool._in_use_connections


def test_one_of_another_process_is_no_longer_counted(pool: Any) -> None:
    connection = lent(pool, Connection())
    connection.pid = -1
    pooled.give_back(pool, connection)
    assert not pool._in_use_connections
    assert not pool._available_connections


@pytest.mark.parametrize("of", ["nobody", "no socket", "another process"])
def test_what_is_not_open_is_not_taken(pool: Any, of: str) -> None:
    if of != "nobody":
        connection: Any = SimpleNamespace(_sock=None if of == "no socket" else object())
        pool._available_connections.append(connection)
    if of == "another process":
        pool.pid = -1
    assert pooled.take_open(pool) is None
    assert not pool._in_use_connections
