"""How `csi-fleet beat` ends."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
from celery import Celery
from celery.beat import Scheduler, Service
from celery.signals import beat_init

from workers.cli import beat


class Swallowing(Scheduler):
    """A scheduler that gets SIGTERM where exceptions cannot propagate, as in a `__del__`."""

    ticks = 0

    def setup_schedule(self):
        pass

    def tick(self, **_):
        self.ticks += 1
        assert self.ticks == 1, "the service goes on"
        with suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        return 0


@pytest.fixture(autouse=True)
def own_handler():
    before = signal.signal(signal.SIGTERM, beat._exit)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_term_whose_exit_is_swallowed_ends_the_service():
    service = Service(Celery(set_as_current=False), scheduler_cls=Swallowing)
    beat_init.connect(beat.stop_on_term, sender=service)
    service.start()
    assert service.scheduler.ticks == 1


def test_a_term_ends_the_sleep_too():
    service = Service(Celery(set_as_current=False), scheduler_cls=Swallowing)
    beat.stop_on_term(service)
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
