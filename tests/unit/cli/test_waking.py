"""SIGTERM is handled at once, not at the end of a wait for messages."""

from __future__ import annotations

import os
import signal

import pytest
from kombu.asynchronous import Hub

from workers.cli.waking import SignalWaker


@pytest.fixture
def waker():
    waker = SignalWaker()
    yield waker
    waker.close()


@pytest.fixture
def hub():
    hub = Hub()
    yield hub
    hub.close()


def test_a_signal_ends_the_wait_of_the_event_loop(hub, waker, monkeypatch):
    """The handler does not raise, like Celery's, so Python alone would continue to wait."""
    seen, woken, drain = [], [], waker._drain
    monkeypatch.setattr(waker, "_drain", lambda: (woken.append(True), drain()))
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(True))
    try:
        for _ in range(2):  # Celery reconnects
            waker.attach(hub)
        rounds = hub.create_loop()
        for _ in range(2):
            hub.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
            next(rounds)
            assert woken == seen, "the byte of the last signal was read, or the next gets lost"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen
