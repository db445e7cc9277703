"""The watcher as a whole, without an API server and without Redis."""

from __future__ import annotations

from watcher.run import Watcher


class FakeRedis:
    """Queue, catalog and registry in one; `life` is Redis' life."""

    life = "first"

    def epoch(self):
        return self.life

    def alive(self):
        return {}

    def pump(self):
        return 1.0


def test_c148_a_redis_that_lost_its_data_is_filled_again_at_once(monkeypatch):
    """C-148: catalog and keys; workers take nothing until the catalog is complete again."""
    redis, told = FakeRedis(), []
    watcher = Watcher(
        None, queue=redis, catalog=redis, registry=redis, intents=None, namespace="system"
    )
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
