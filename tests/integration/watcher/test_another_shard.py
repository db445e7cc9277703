"""A watcher that came to another shard's Redis: it ends, and nobody there takes it for theirs."""

from __future__ import annotations

from tests.support.waiting import wait_until
from watcher.__main__ import build
from workers import loop
from workers.config.flags import Command
from workers.config.load import parse
from workers.config.shard import Shard
from workers.queue.catalog import CatalogWriter
from workers.queue.connection import connect


def test_it_ends_without_a_trace(redis_server, redis_client, monkeypatch):
    """`status` must not count it: there may be no watcher but this one."""
    ended = []
    monkeypatch.setattr(loop.os, "kill", lambda *_: ended.append(1))
    ours = connect(redis_server.url, shard=Shard(0, 2))
    CatalogWriter(ours).epoch()
    before = {name: redis_client.dump(name) for name in redis_client.scan_iter("*")}
    urls = f"redis://127.0.0.1:1/0 {redis_server.url}"
    argv = ["--shard=1/2", "--master=http://127.0.0.1:9"]
    watcher = build(parse(Command.WATCHER, argv, {"CSI_FLEET_REDIS_URL": urls}))
    watcher.start()
    try:
        wait_until(lambda: ended, 20, "the end of the process")
        assert watcher.is_refused
    finally:
        watcher.stop()
    assert {name: redis_client.dump(name) for name in redis_client.scan_iter("*")} == before
