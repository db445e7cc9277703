"""The whole watcher, without an API server and without Redis."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.waiting import wait_until
from watcher import run
from watcher.run import Watcher
from workers.errors import QueueUnavailable
from workers.queue.keys import claim_key


class FakeRedis:
    """Queue, shared cache and registry in one; `life` is the epoch of Redis."""

    life = "first"

    def epoch(self):
        return self.life

    def alive(self):
        return {}

    def end_history(self, epoch):
        """Do nothing: no test restores etcd from a backup."""

    def pump(self):
        return 1.0


def make(redis, **options):
    return Watcher(
        None,
        queue=redis,
        catalog=redis,
        registry=redis,
        intents=None,
        namespace="system",
        **options,
    )


def test_c148_a_redis_that_lost_its_data_is_filled_again_at_once(monkeypatch):
    """C-148: cache and keys are sent, and workers take nothing until the cache is complete."""
    redis, told = FakeRedis(), []
    watcher = make(redis)
    for owner, name in (
        (watcher.machine, "begin"),
        (watcher.machine, "relist_catalog"),
        (watcher.outbox, "add_everything"),
    ):
        monkeypatch.setattr(owner, name, lambda name=name: told.append(name))
    watcher.keeper.step()
    watcher.keeper.step()
    assert told == ["begin"]
    redis.life = "second"
    watcher.keeper.step()
    assert told == ["begin", "relist_catalog", "add_everything"]


def test_records_of_the_release_before_move_before_the_first_key(monkeypatch):
    """Otherwise a worker would begin a second attempt next to the open one (G7)."""
    told, is_down = [], [True]

    def adopt():
        if is_down:
            raise QueueUnavailable(is_down.pop())
        told.append("moved")

    watcher = make(FakeRedis(), recovery=SimpleNamespace(adopt=adopt))
    monkeypatch.setattr(watcher.machine, "begin", lambda: told.append("begin"))
    with pytest.raises(QueueUnavailable):
        watcher.keeper.step()
    watcher.keeper.step()
    assert told == ["moved", "begin"]


def test_people_see_a_watcher_once_it_reached_redis(monkeypatch):
    told = []
    presence = SimpleNamespace(announce=told.append)
    watcher = make(FakeRedis(), presence=presence)
    monkeypatch.setattr(watcher.machine, "begin", lambda: told.append("reached"))
    loop = watcher.loops["presence"]
    loop.start()
    try:
        watcher.keeper.step()
        wait_until(lambda: len(told) > 1, 10, "the watcher tells that it lives")
    finally:
        loop.stop()
    assert told == ["reached", "watcher"]
    assert "presence" not in make(FakeRedis()).loops


@pytest.mark.parametrize("keys", [[], [claim_key("d", "ns", "one", "u1")]])
def test_attempts_that_came_back_from_configmaps_are_told(monkeypatch, caplog, keys):
    """A run that restores nothing is not logged."""
    watcher, sent = make(FakeRedis()), []
    monkeypatch.setattr(run, "restore_intents", lambda *_: keys)
    monkeypatch.setattr(watcher.outbox, "add", sent.extend)
    watcher.loops["recovery"]._step()
    assert sent == keys
    assert caplog.messages.count("restored attempts from their ConfigMaps") == len(keys)
