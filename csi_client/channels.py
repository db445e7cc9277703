"""How do calls at the same time not wait for each other within gRPC?

A thread in a call holds the lock of its channel now and then, and threads queue for it. So calls
at the same time have a channel each, up to a few, and all channels share one connection.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

MOST_CHANNELS: Final = 8


@dataclass(slots=True)
class _Line:
    channel: grpc.Channel
    methods: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = field(default_factory=dict)

    def method(self, rpc: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
        method = self.methods.get(rpc)
        if method is None:
            method = self.methods[rpc] = self.channel.unary_unary(rpc, None, None)
        return method


class Channels:
    """The channels of one client; safe for threads.

    Args:
        make: opens one, see `csi_client.connection.channel_maker`.
        most: so many; further calls share the first one.
    """

    def __init__(self, make: Callable[[], grpc.Channel], most: int = MOST_CHANNELS) -> None:
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._lines = [_Line(make())]
        self._free = self._lines.copy()
        self._is_closed = False

    @property
    def first(self) -> grpc.Channel:
        """The one that tells of the connection."""
        return self._lines[0].channel

    @contextmanager
    def method(self, rpc: str) -> Iterator[grpc.UnaryUnaryMultiCallable[bytes, bytes]]:
        """A method of the driver, for one call."""
        line = self._taken()
        if line is None:
            yield self._lines[0].method(rpc)
            return
        try:
            yield line.method(rpc)
        finally:
            self._free.append(line)

    def close(self) -> None:
        """Close them; running calls end with CANCELLED. Safe to call twice."""
        with self._lock:
            self._is_closed = True
        for line in self._lines:
            line.channel.close()

    def _taken(self) -> _Line | None:
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self._lock:
            if self._is_closed or len(self._lines) == self._most:
                return None
            line = _Line(self._make())
            self._lines.append(line)
            return line
