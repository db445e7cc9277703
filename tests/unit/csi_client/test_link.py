"""Whether a driver is connected, how long callers wait for it, and which thread checks it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from csi_client import connection
from csi_client.connection import Link

READY, IDLE = 2, 0


class Channel:
    """A channel that returns `states` in turn, the last one forever; exceptions are raised."""

    def __init__(self, *states: Any) -> None:
        self.states, self.asked = list(states), []
        self._channel = self

    def check_connectivity_state(self, try_to_connect: bool) -> int:
        self.asked.append(try_to_connect)
        assert len(self.asked) < 1000, "it looks without a pause"
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, Exception):
            raise found
        return int(found)


class Watch:
    """Records the links that are watched."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.add, self.remove = self.links.append, self.links.remove


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Return a fake watch, so that only the test checks the links."""
    watch = Watch()
    monkeypatch.setattr(connection, "_WATCH", watch)
    return watch


def test_each_loss_of_a_connection_is_counted(watch: Watch) -> None:
    """P-003: a missing first connection is not a loss; each check makes the channel reconnect."""
    channel = Channel(IDLE, READY, READY, IDLE, IDLE, READY, 3)
    link = Link(channel)  # type: ignore[arg-type]
    assert watch.links == [link]
    assert (link.is_connected, link.losses) == (False, 0)
    seen = [(link.look(), link.is_connected, link.losses) for _ in range(7)]
    assert seen == [
        (False, False, 0),
        (True, True, 0),
        (True, True, 0),
        (False, False, 1),
        (False, False, 1),
        (True, True, 1),
        (False, False, 2),
    ]
    assert channel.asked == [True] * 7


def test_a_channel_that_was_closed_first_is_asked_once(watch: Watch) -> None:
    """gRPC raises a ValueError for a closed channel; its connection counts as lost."""
    channel = Channel(READY, ValueError("closed"))
    link = Link(channel)  # type: ignore[arg-type]
    link.look()
    assert [link.look() for _ in range(3)] == [False] * 3
    assert (link.is_connected, link.losses, len(channel.asked)) == (False, 1, 2)


def test_a_closed_link_is_not_connected_and_looks_no_more(watch: Watch) -> None:
    """It ignores the state of the channel and counts no loss."""
    channel = Channel(READY)
    link = Link(channel)  # type: ignore[arg-type]
    link.look()
    link.close()
    assert (link.look(), link.is_connected, link.losses) == (False, False, 0)
    assert (len(channel.asked), watch.links) == (1, [])


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds


@pytest.mark.parametrize(
    ("states", "timeout", "is_connected", "waits", "seconds"),
    [
        pytest.param([READY], 1, True, 0, 0, id="at once"),
        pytest.param([IDLE], 0, False, 0, 0, id="no time at all"),
        pytest.param([IDLE, READY], 1, True, 0, 0.125, id="soon"),
        pytest.param([IDLE] * 5 + [READY], 1, True, 1, 0.625, id="after a wait"),
        pytest.param([IDLE], 1, False, 1, 1, id="never"),
        pytest.param([IDLE], 2, False, 3, 2, id="never, for longer"),
    ],
)
def test_p002_how_long_a_driver_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    states: list[int],
    timeout: float,
    is_connected: bool,
    waits: int,
    seconds: float,
) -> None:
    """P-002: up to but not including the last moment; the callback runs every half second."""
    clock, told = Clock(), []
    monkeypatch.setattr(connection, "time", clock)
    monkeypatch.setattr(connection, "_WAIT_PERIOD_SECONDS", 0.125)
    link = Link(Channel(*states))  # type: ignore[arg-type]
    found = link.wait(timeout, lambda: told.append(clock.now), wait_every_seconds=0.5)
    assert (found, len(told), clock.now - 100) == (is_connected, waits, seconds)
    assert told == [100 + 0.5 * (number + 1) for number in range(waits)]


def test_nobody_need_be_told_of_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "time", Clock())
    link = Link(Channel(IDLE))  # type: ignore[arg-type]
    assert link.wait(1, wait_every_seconds=0.1) is False


class Looked:
    """A link that counts its checks and fails if they never stop."""

    def __init__(self) -> None:
        self.count = 0

    def look(self) -> bool:
        self.count += 1
        assert self.count < 10, "it looks without a pause"
        return True


class Pause:
    """Replaces the pause between two rounds; after the second pause there are no links left."""

    def __init__(self, watch: Any) -> None:
        self.watch, self.waits = watch, []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) == 2:
            self.watch._links.clear()


def test_rounds_have_a_pause_between_them() -> None:
    """The pause was chosen by measuring 200 idle drivers; the thread ends with the last link."""
    watch = connection._Watch()
    watch._is_empty = pause = Pause(watch)  # type: ignore[assignment]
    link = Looked()
    watch._links = {link}  # type: ignore[assignment,arg-type]
    watch._thread = SimpleNamespace()  # type: ignore[assignment]
    watch._run()
    assert (pause.waits, link.count, watch._thread) == ([0.3, 0.3], 2, None)


def test_the_pause_ends_with_the_last_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon thread serves all links, and the process does not wait for it to end."""
    started: list[Any] = []

    def thread(**options: Any) -> Any:
        started.append(options)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(connection.threading, "Thread", thread)
    watch, links = connection._Watch(), [Looked(), Looked()]
    for _ in range(2):
        for link in links:
            watch.add(link)  # type: ignore[arg-type]
        assert not watch._is_empty.is_set()
        watch.remove(links[0])  # type: ignore[arg-type]
        assert not watch._is_empty.is_set()
        watch.remove(links[1])  # type: ignore[arg-type]
        assert watch._is_empty.is_set()
    assert len(started) == 1
    assert started[0]["daemon"] is True


def test_liveness_hears_how_long_nobody_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without links there is nothing to check, so the watch is not late."""
    watch = connection._Watch()
    monkeypatch.setattr(connection, "_WATCH", watch)
    watch._round_at = time.monotonic() - 100
    assert connection.links_silent_seconds() == 0
    watch._thread = SimpleNamespace()  # type: ignore[assignment]
    assert 100 <= connection.links_silent_seconds() < 1000
