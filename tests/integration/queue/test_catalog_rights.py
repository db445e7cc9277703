"""Permissions for the catalog: workers read it, and only the watcher writes it."""

from __future__ import annotations

import pytest

from tests.support.secure_redis import DRIVER_USER, SecureRedis
from workers.errors import CatalogIncomplete
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.names import NAMES
from workers.queue.records import decode

pytestmark = pytest.mark.integration


@pytest.fixture
def server(redis_binary, tmp_path):
    server = SecureRedis(redis_binary, tmp_path)
    yield server.start()
    server.stop()


@pytest.mark.parametrize("user", ["worker", DRIVER_USER])
def test_a_reader_of_few_rights_has_an_unreadable_entry_listed_anew(server, user):
    """A reader with few permissions can ask for a new list of a kind.

    Otherwise an unreadable entry would fail each pass of every driver until an operator repairs
    Redis.
    """
    operator = server.client("operator")
    writer = CatalogWriter(server.client("watcher"))
    epoch = writer.epoch()
    writer.replace("classes", [("fast", "5", {"ok": True})], "6")
    assert writer.mark_complete(["classes"], epoch)
    operator.hset(NAMES["catalog"].full + "classes", "fast", "7 {broken")
    reader = CatalogReader(server.client(user))
    with pytest.raises(CatalogIncomplete, match="fast"):
        reader.get("classes", "fast")
    assert writer.incomplete(["classes"], epoch) == {"classes"}
    writer.replace("classes", [("fast", "5", {"ok": True})], "6")
    assert writer.mark_complete(["classes"], epoch)
    assert reader.get("classes", "fast") == {"ok": True}
    assert writer.incomplete(["classes"], epoch) == set()
    assert server.denials() == []


def test_what_a_reader_may_not_set_aside_counts_as_absent(server, caplog):
    """A reader without write permission leaves the record in place and ignores it.

    The watcher only reads capacity records; their owner moves them to the quarantine.
    """
    operator = server.client("operator")
    key = NAMES["capacity"].full + "d"
    operator.hset(key, "item", "{broken")
    assert decode(server.client("watcher"), key, "item", operator.hget(key, "item")) is None
    assert "is unreadable; it was left in place" in caplog.text
    assert operator.hexists(key, "item")
