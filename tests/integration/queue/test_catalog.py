"""The catalog: newer versions win, readers follow by version, and absence needs a complete kind."""

from __future__ import annotations

import pytest
import redis

from tests.support.taking import take
from workers.errors import CatalogIncomplete
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.keys import claim_key
from workers.queue.leases import CatalogState
from workers.queue.names import NAMES
from workers.queue.scripts import Scripts
from workers.queue.workqueue import WorkQueue


@pytest.fixture
def writer(redis_client: redis.Redis) -> CatalogWriter:
    return CatalogWriter(redis_client)


@pytest.fixture
def reader(redis_client: redis.Redis, writer: CatalogWriter) -> CatalogReader:
    assert writer.mark_complete(["classes", "nodes", "csinodes", "attachments"], writer.epoch())
    return CatalogReader(redis_client)


def test_nothing_is_concluded_before_the_watcher_declared_it_complete(redis_client, writer):
    """M-017: before a kind is complete, readers raise.

    A class can be absent only because the watcher has not written it yet.
    """
    reader = CatalogReader(redis_client)
    writer.write("classes", [("fast", "5", {"a": 1})])
    for read in (lambda: reader.get("classes", "fast"), lambda: reader.attachment("pv")):
        with pytest.raises(CatalogIncomplete):
            read()
    assert not writer.mark_complete(["classes"], "an epoch that is over")
    assert writer.incomplete(["classes"], writer.epoch()) == {"classes"}
    writer.mark_complete(["classes"], writer.epoch())
    assert reader.get("classes", "fast") == {"a": 1}
    assert reader.get("classes", "slow") is None


def test_a_kind_that_lost_changes_is_incomplete_until_its_next_list(writer, reader):
    """A kind that lost changes is incomplete until its next list, also for readers with a copy.

    The other kinds stay complete.
    """
    writer.write("classes", [("fast", "5", {"a": 1})])
    assert reader.get("classes", "fast") == {"a": 1}
    writer.mark_incomplete([])
    writer.mark_incomplete(["classes", "attachments"])
    for read in (lambda: reader.get("classes", "fast"), lambda: reader.attachment("pv")):
        with pytest.raises(CatalogIncomplete):
            read()
    assert reader.get("nodes", "n") is None
    epoch = writer.epoch()
    assert writer.incomplete(["classes", "nodes"], epoch) == {"classes"}
    assert writer.mark_complete(["classes"], epoch)
    assert reader.get("classes", "fast") == {"a": 1}


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        pytest.param("9", "10", "second", id="integers, not text"),
        pytest.param("10", "9", "first", id="older comes late"),
        pytest.param("7", "7", "first", id="equal changes nothing"),
        pytest.param("9007199254740992", "9007199254740993", "second", id="above 2^53"),
    ],
)
def test_newer_resource_version_wins(writer, reader, first, second, winner):
    writer.write("classes", [("fast", first, {"from": "first"})])
    changed = writer.write("classes", [("fast", second, {"from": "second"})])
    assert changed == (winner == "second")
    assert reader.get("classes", "fast") == {"from": winner}


def test_late_put_does_not_revive_a_removed_object(writer, reader):
    writer.write("nodes", [("n1", "5", {})])
    assert writer.write("nodes", [("n1", "8", None)])
    assert not writer.write("nodes", [("n1", "8", None)])
    assert not writer.write("nodes", [("n1", "7", {})])
    assert reader.get("nodes", "n1") is None
    assert writer.write("nodes", [("n1", "9", {"again": True})])
    assert reader.get("nodes", "n1") == {"again": True}


def test_replace_removes_what_vanished_but_nothing_newer_than_the_list(writer, reader):
    writer.write("nodes", [("gone", "5", {})])
    writer.write("nodes", [("newer", "101", {})])
    writer.replace("nodes", [(f"n{i}", "50", {"i": i}) for i in range(450)], "100")
    nodes = reader.all("nodes")
    assert len(nodes) == 451
    assert "gone" not in nodes
    assert "newer" in nodes


def test_tombstones_are_pruned_and_readers_that_missed_them_reload(redis_client, writer, reader):
    writer.replace("nodes", [("a", "1", {}), ("b", "1", {})], "10")
    assert set(reader.all("nodes")) == {"a", "b"}
    writer.write("nodes", [("b", "11", None)])
    writer.replace("nodes", [("a", "1", {})], "12")
    writer.replace("nodes", [("a", "1", {})], "13")
    assert redis_client.hkeys(NAMES["catalog"].full + "nodes") == [b"a"]
    assert set(reader.all("nodes")) == {"a"}


def test_a_list_drops_no_tombstone_that_is_newer(writer, reader):
    """An old list does not remove newer tombstones.

    One of two watchers can be behind, with a list and a watch older than the removal.
    """
    writer.write("attachments", [("pv", "105", {"va": "node"})])  # the watcher that is ahead
    writer.write("attachments", [("pv", "110", None)])
    # the watcher that is behind: its list is older than both
    writer.replace("attachments", [], "100")
    # an event of its watch, before it dies
    writer.write("attachments", [("pv", "105", {"va": "node"})])
    assert reader.attachment("pv") is None


def test_what_came_back_since_the_scan_is_not_pruned_and_nobody_reloads(redis_client, writer):
    """An object that another watcher wrote after the scan is not pruned, and no reader reloads."""
    scripts, epoch = Scripts(redis_client), writer.epoch()
    writer.write("nodes", [("a", "1", {})])
    known = scripts.run("catalog_read", epoch, "nodes", 0)[1][2]
    writer.write("nodes", [("b", "2", {})])
    assert scripts.run("catalog_prune", "nodes", "9", "a", "gone") == 0
    _, _, _, is_full, flat = scripts.run("catalog_read", epoch, "nodes", known)[1]
    assert (is_full, flat) == (0, [b"b", b"2 {}"])


def test_tombstones_are_pruned_though_their_versions_were_lost(redis_client, writer):
    """Tombstones are pruned after the loss of their versions.

    Readers that are ahead of a lost counter reload anyway.
    """
    writer.write("nodes", [("a", "1", {}), ("a", "2", None)])
    redis_client.delete(NAMES["versions"].full)
    writer.replace("nodes", [], "3")
    assert redis_client.hkeys(NAMES["catalog"].full + "nodes") == []


def test_lease_state_saves_the_round_trip_until_something_changes(redis_client, writer, reader):
    """A reader does not query an unchanged catalog,
    because the lease carries the catalog's versions.
    """
    queue = WorkQueue(redis_client, publish=lambda _: None)
    queue.register_process()
    queue.set_limits("claims|d", 5)
    writer.write("classes", [("fast", "1", {"v": 1})])

    def state():
        queue.add([claim_key("d", "ns", "a", "u")])
        lease = take(queue, claim_key("d", "ns", "a", "u"))
        queue.done(lease)
        return lease.catalog

    def commands() -> int:
        return redis_client.info("stats")["total_commands_processed"]

    unchanged = state()
    reader.get("classes", "fast", unchanged)
    start = commands()
    assert reader.get("classes", "fast", unchanged) == {"v": 1}
    assert commands() == start + 1, "only our own INFO"
    writer.write("classes", [("fast", "2", {"v": 2})])
    assert reader.get("classes", "fast", state()) == {"v": 2}


def test_refresh_after_a_wipe_forgets_the_old_life(redis_client, writer, reader):
    writer.write("classes", [("fast", "5", {})])
    assert reader.get("classes", "fast") == {}
    redis_client.flushall()
    with pytest.raises(CatalogIncomplete):
        reader.get("classes", "fast")
    epoch = writer.epoch()
    writer.replace("classes", [("other", "1", {})], "2")
    writer.mark_complete(["classes"], epoch)
    assert set(reader.all("classes")) == {"other"}


@pytest.mark.parametrize("broken", ["5 {not json", "no version", "5 [1]"])
def test_unreadable_entry_is_set_aside_and_listed_again(
    redis_client, writer, reader, caplog, broken
):
    """An unreadable class makes the kind incomplete until the watcher writes it again.

    It does not count as absent.
    """
    redis_client.hset(NAMES["catalog"].full + "classes", "fast", broken)
    for _ in range(2):  # until the watcher checks
        with pytest.raises(CatalogIncomplete):
            reader.get("classes", "fast")
    epoch = writer.epoch()
    assert writer.incomplete(["classes", "nodes"], epoch) == {"classes"}
    assert "moved to the quarantine" in caplog.text
    assert caplog.records[0].fields["field"] == "fast"
    with pytest.raises(CatalogIncomplete):
        reader.get("classes", "fast")
    writer.replace("classes", [("fast", "5", {"ok": True})], "6")
    writer.mark_complete(["classes"], epoch)
    assert reader.get("classes", "fast") == {"ok": True}


def test_attachment_is_read_straight(writer, reader):
    writer.write("attachments", [("pvc-1", "3", {"attached": True})])
    assert reader.attachment("pvc-1") == {"attached": True}
    writer.write("attachments", [("pvc-1", "4", None)])
    assert reader.attachment("pvc-1") is None


def test_a_reader_follows_without_touching_what_others_hold(writer, reader):
    """A change replaces a reader's whole copy, so a pass needs no lock.

    Without a change the copy stays the same object.
    """
    writer.write("nodes", [("a", "1", {}), ("b", "1", {}), ("c", "1", {})])
    first = reader.all("nodes")
    assert reader.all("nodes") is first
    writer.write("nodes", [("a", "2", {"new": 1}), ("b", "2", None)])
    assert reader.all("nodes") == {"a": {"new": 1}, "c": {}}
    assert first == {"a": {}, "b": {}, "c": {}}


def test_a_deleted_object_is_no_unreadable_one(redis_client, writer, reader):
    """The entry of a deleted object keeps its version,
    because otherwise a late write would restore the object.
    """
    writer.write("nodes", [("a", "1", {}), ("a", "2", None), ("b", "1", {})])
    assert reader.all("nodes") == {"b": {}}
    writer.write("nodes", [("b", "3", None)])
    assert reader.all("nodes") == {}
    assert reader.attachment("none") is None
    assert not redis_client.exists(NAMES["quarantine"].full)
    assert sorted(redis_client.hkeys(NAMES["catalog"].full + "nodes")) == [b"a", b"b"]


def test_what_was_removed_as_a_whole_is_gone_for_readers_that_follow(redis_client, writer, reader):
    """Readers drop an object whose entry is removed while the note of its change still exists."""
    writer.write("nodes", [("a", "1", {}), ("b", "1", {})])
    reader.all("nodes")
    writer.write("nodes", [("b", "2", {"b": 2})])
    redis_client.zadd(NAMES["changes"].full + "nodes", {"a": 9e15})
    redis_client.hdel(NAMES["catalog"].full + "nodes", "a")
    assert reader.all("nodes") == {"b": {"b": 2}}
    assert not redis_client.exists(NAMES["quarantine"].full)


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [
        pytest.param({}, False, id="as it was"),
        pytest.param({"versions": {}}, False, id="a kind that nobody wrote yet"),
        pytest.param({"versions": {"nodes": 1}}, False, id="behind what is known"),
        pytest.param({"epoch": "another"}, True, id="another life"),
        pytest.param({"complete": frozenset()}, True, id="not complete any more"),
        pytest.param({"versions": {"nodes": 9**18}}, True, id="a newer version"),
    ],
)
def test_a_lease_saves_the_round_trip_only_where_its_state_is_known(
    redis_client, writer, reader, changes, is_asked
):
    writer.write("nodes", [("a", "1", {})])
    epoch, version = writer.epoch(), int(redis_client.hget(NAMES["versions"].full, "nodes"))
    state = {"epoch": epoch, "versions": {"nodes": version}, "complete": frozenset({"nodes"})}
    reader.all("nodes")
    asked = []
    reader.refresh = asked.append
    assert reader.get("nodes", "a", CatalogState(**{**state, **changes})) == {}
    assert asked == ([("nodes",)] if is_asked else [])
    reader.get("nodes", "a")
    assert len(asked) == is_asked + 1, "who has no lease asks"


def test_a_reader_that_never_asked_knows_nothing(redis_client):
    """A new process has no copy, so it raises, whatever its lease contains."""
    state = CatalogState("", {}, frozenset({"nodes"}))
    with pytest.raises(CatalogIncomplete):
        CatalogReader(redis_client).all("nodes", state)


def test_several_kinds_are_fetched_together_whatever_life_they_are_of(writer, reader, redis_client):
    writer.write("nodes", [("a", "1", {})])
    writer.write("classes", [("fast", "1", {})])
    reader.refresh(["nodes"])
    redis_client.flushall()
    epoch = writer.epoch()
    writer.write("nodes", [("b", "1", {})])
    writer.write("classes", [("slow", "1", {})])
    writer.mark_complete(["nodes", "classes"], epoch)
    reader.refresh()
    assert (set(reader.all("nodes")), set(reader.all("classes"))) == ({"b"}, {"slow"})
