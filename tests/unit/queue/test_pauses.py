"""What an operator says of a class holds, whatever is read of an older word in that moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workers.queue.pauses import Pauses


class Store:
    """As much of Redis as pauses of classes ask for."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[bytes, bytes]] = {}
        self.after_read: Any = None
        self.connection_pool = SimpleNamespace(connection_kwargs={})
        self.prefix = "csifleet:"

    def time(self) -> tuple[int, int]:
        return 1000, 0

    def hset(self, name: str, key: str, value: Any) -> None:
        self.hashes.setdefault(name, {})[key.encode()] = str(value).encode()

    def hgetall(self, name: str) -> dict[bytes, bytes]:
        found = dict(self.hashes.get(name, {}))
        happens, self.after_read = self.after_read, None
        if happens:
            happens()
        return found

    def hdel(self, name: str, *keys: Any) -> int:
        known = self.hashes.get(name, {})
        names = [key if isinstance(key, bytes) else key.encode() for key in keys]
        return len([known.pop(one) for one in names if one in known])


def test_a_pause_said_while_an_old_one_ends_holds():
    """Any worker reads about once a second, also between the operator's word and its end."""
    store: Any = Store()
    pauses = Pauses(store)
    pauses.pause_class("fast", "an old one", seconds=-1)  # over by now
    operator = Pauses(store)
    store.after_read = lambda: operator.pause_class("fast", "disaster: delete nothing")
    assert pauses.classes() == {}
    assert "fast" in Pauses(store).classes()


@pytest.mark.parametrize(("seconds", "is_paused"), [(60, True), (None, True), (-1, False)])
def test_an_operator_is_told_whether_a_class_was_paused(seconds, is_paused):
    """A pause whose time is over is none; nothing of it is left afterwards."""
    store: Any = Store()
    pauses = Pauses(store)
    pauses.pause_class("fast", "why", seconds=seconds)
    assert pauses.resume_class("fast") is is_paused
    assert pauses.resume_class("fast") is False
    assert not store.hashes["csifleet:class_pauses"]
