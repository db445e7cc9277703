"""What kombu does with Lua, done with commands: no component may send code to Redis (SEC-5).

The bindings of queues that expire (answers to Flower, its events) have a deadline each. One command
between two of ours may be somebody else's; the worst is a binding that its consumer writes again at
its next turn.
"""

from __future__ import annotations

import time
from typing import Any


def install(channel: Any, qos: Any) -> None:
    """For every channel of this process; kombu's classes `Channel` and `QoS`."""
    channel._refresh_binding = staticmethod(refresh_binding)  # noqa: SLF001 - no other way in
    channel._sweep_bindings = staticmethod(sweep_bindings)  # noqa: SLF001
    # Nothing is ever unacknowledged (workers.app.TRANSPORT); the search for it takes a lock.
    qos.restore_visible = restore_nothing


def refresh_binding(keys: Any, args: Any, client: Any) -> None:
    """Add a member to a table of bindings and move the table's deadline."""
    (table, deadlines), (member, exchange, lifetime_ms) = keys, args
    client.sadd(table, member)
    client.zadd(deadlines, {exchange: _now_ms() + int(lifetime_ms)}, gt=True)


def sweep_bindings(keys: Any, args: Any, client: Any) -> int:
    """Delete tables whose deadline is over, unless a queue without one is in them."""
    (deadlines,), (table, permanent, limit) = keys, args
    overdue = client.zrangebyscore(deadlines, "-inf", _now_ms(), start=0, num=int(limit))
    for name in overdue:
        exchange = name.decode() if isinstance(name, bytes) else name
        if not client.exists(permanent + exchange):
            client.delete(table + exchange)
        client.zrem(deadlines, exchange)
    return len(overdue)


def restore_nothing(qos: Any, **_: Any) -> None:
    """In place of the search for tickets that a dead worker had."""


def _now_ms() -> int:
    return round(time.time() * 1000)
