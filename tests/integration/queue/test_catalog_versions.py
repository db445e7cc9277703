"""Versions of the catalog and of the drivers' registry: what readers receive, and removals."""

from __future__ import annotations

import pytest

from workers.queue.names import NAMES
from workers.queue.scripts import Scripts

NOW = 1_700_000_000_000
CATALOG, CHANGES = NAMES["catalog"].full + "nodes", NAMES["changes"].full + "nodes"
VERSIONS, FLOORS = NAMES["versions"].full, NAMES["floors"].full
EPOCH, COMPLETE = NAMES["epoch"].full, NAMES["complete"].full
DRIVERS, UNTIL = NAMES["drivers"].full, NAMES["drivers_until"].full


@pytest.fixture
def scripts(bench):
    return Scripts(bench.client, lambda: bench.now_ms)


@pytest.fixture
def put(scripts):
    def put(*entries):
        return scripts.run("catalog_put", "nodes", *(part for entry in entries for part in entry))

    return put


@pytest.mark.parametrize(
    ("epoch", "known", "is_full", "sent"),
    [
        pytest.param("now", 7, 0, [], id="up to date"),
        pytest.param("now", 6, 0, ["c", "3 {}"], id="one behind"),
        pytest.param("now", 5, 0, ["b", "2 {}", "c", "3 {}"], id="at the floor"),
        pytest.param("now", 4, 1, None, id="below the floor: tombstones were dropped"),
        pytest.param("now", 8, 1, None, id="ahead: the counter was lost"),
        pytest.param("before", 7, 1, None, id="of another life"),
        pytest.param("", 0, 1, None, id="new"),
    ],
)
def test_a_reader_is_sent_what_changed_or_everything(bench, scripts, epoch, known, is_full, sent):
    bench.client.set(EPOCH, "now")
    bench.client.hset(CATALOG, mapping={"a": "1 {}", "b": "2 {}", "c": "3 {}"})
    bench.client.zadd(CHANGES, {"a": 5, "b": 6, "c": 7})
    bench.client.hset(VERSIONS, "nodes", 7)
    bench.client.hset(FLOORS, "nodes", 5)
    found_epoch, reply = scripts.run("catalog_read", epoch, "nodes", known)
    kind, is_complete, version, full, flat = reply
    assert (found_epoch, kind, is_complete, version, full) == (b"now", b"nodes", 0, b"7", is_full)
    texts = [part.decode() for part in flat]
    if sent is None:
        assert sorted(texts) == ["1 {}", "2 {}", "3 {}", "a", "b", "c"]
    else:
        assert texts == sent


@pytest.mark.parametrize(
    ("epoch", "mark", "is_complete"),
    [("now", "now", 1), ("now", "before", 0), ("now", None, 0), (None, None, 0), (None, "now", 0)],
)
def test_a_kind_is_complete_in_the_life_that_wrote_it(bench, scripts, epoch, mark, is_complete):
    """M-017: a kind is complete only in the epoch in which
    it was written, for readers of all objects and of one.
    """
    if epoch:
        bench.client.set(EPOCH, epoch)
    if mark:
        bench.client.hset(COMPLETE, "nodes", mark)
    scripts.run("catalog_fresh", "now", "nodes")
    bench.client.hset(CATALOG, "a", "1 {}")
    assert scripts.run("catalog_read", epoch or "", "nodes", 0)[1][1] == is_complete
    assert scripts.run("catalog_entry", "nodes", "a") == [is_complete, b"1 {}"]
    assert scripts.run("catalog_entry", "nodes", "b") == [is_complete, b""]


@pytest.mark.parametrize(("epoch", "is_said"), [("now", 1), ("before", 0)])
def test_only_the_present_life_is_declared_complete(bench, scripts, epoch, is_said):
    bench.client.set(EPOCH, "now")
    assert scripts.run("catalog_complete", epoch, "nodes", "classes") == is_said
    assert bench.client.hgetall(COMPLETE) == (
        {b"nodes": b"now", b"classes": b"now"} if is_said else {}
    )


@pytest.mark.parametrize(
    ("before", "entry", "changes"),
    [
        pytest.param(None, ("5", "{}"), 1, id="new"),
        pytest.param(None, ("5", ""), 0, id="gone before it was seen"),
        pytest.param("5 {}", ("5", "{1}"), 0, id="the same version"),
        pytest.param("5 {}", ("4", "{1}"), 0, id="older"),
        pytest.param("9 {}", ("10", "{1}"), 1, id="newer, as a number"),
        pytest.param("5 {}", ("5", ""), 1, id="gone at that version"),
        pytest.param("5 {}", ("4", ""), 0, id="gone at an older one"),
        pytest.param("5 ", ("5", ""), 0, id="gone already"),
        pytest.param("5 ", ("6", ""), 1, id="gone later"),
        pytest.param("5 ", ("5", "{}"), 0, id="back at the version it went with"),
        pytest.param("5 ", ("6", "{}"), 1, id="back"),
    ],
)
def test_the_newer_version_of_an_object_is_kept_and_counted(bench, put, before, entry, changes):
    bench.client.hset(VERSIONS, "nodes", 7)
    if before is not None:
        bench.client.hset(CATALOG, "a", before)
    assert put(("a", *entry)) == changes
    after = " ".join(entry) if changes else before
    assert bench.client.hget(CATALOG, "a") == (None if after is None else after.encode())
    assert bench.client.zrange(CHANGES, 0, -1, withscores=True) == [(b"a", 8.0)] * changes
    assert int(bench.client.hget(VERSIONS, "nodes")) == 7 + changes


def test_each_change_of_a_call_has_its_version(bench, put):
    """Each change in a call gets its own version.

    A lost counter restarts at the current time, above all earlier versions.
    """
    assert put(("a", "5", "{}"), ("b", "5", "{}"), ("c", "5", "")) == 2
    first = NOW * 1000
    assert bench.client.zrange(CHANGES, 0, -1, withscores=True) == [
        (b"a", first + 1), (b"b", first + 2),
    ]  # fmt: skip
    assert int(bench.client.hget(VERSIONS, "nodes")) == first + 2


@pytest.mark.parametrize(("listed", "pruned"), [("9", 0), ("10", 1), ("11", 1)])
def test_a_tombstone_goes_with_a_list_that_is_not_older(scripts, put, listed, pruned):
    """A list removes tombstones that are not newer than the list.

    Versions are compared as numbers.
    """
    put(("a", "5", "{}"), ("a", "10", ""))
    assert scripts.run("catalog_prune", "nodes", listed, "a") == pruned


def test_what_is_pruned_leaves_nothing_behind(bench, scripts, put):
    put(("a", "5", "{}"), ("b", "5", "{}"), ("c", "5", "{}"))
    put(("a", "6", ""), ("b", "6", ""))
    assert scripts.run("catalog_prune", "nodes", "6", "a", "b", "c", "never") == 2
    assert bench.client.hkeys(CATALOG) == bench.client.zrange(CHANGES, 0, -1) == [b"c"]
    assert bench.client.hget(FLOORS, "nodes") == bench.client.hget(VERSIONS, "nodes")


def keep(scripts, *rows, process="p", ttl=10_000):
    """Register drivers, given as rows of (name, record, is_connected)."""
    return scripts.run("drivers_keep", process, ttl, *(part for row in rows for part in row))


def test_a_driver_that_comes_back_is_a_change_again(bench, scripts):
    """A driver that expires and returns changes the
    version both times, even if its record is the same.
    """
    assert keep(scripts, ("d", "{}", 0)) == [1, []]
    assert keep(scripts, ("d", "{}", 0)) == [0, []]
    version = int(bench.client.hget(VERSIONS, "drivers"))
    assert version == NOW * 1000 + 1
    bench.now_ms += 10_000
    assert scripts.run("drivers_alive") == [str(version).encode()]
    assert keep(scripts, ("other", "{}", 0)) == [1, []]
    assert bench.client.hkeys(DRIVERS) == bench.client.zrange(UNTIL, 0, -1) == [b"other"]
    assert keep(scripts, ("other", "{}", 0)) == [0, []], "it went once"
    assert keep(scripts, ("d", "{}", 0)) == [1, []]
    assert int(bench.client.hget(VERSIONS, "drivers")) == version + 2


@pytest.mark.parametrize(("later", "names"), [(9_999, [b"d", b"{}"]), (10_000, [])])
def test_a_driver_is_served_until_the_last_millisecond(bench, scripts, later, names):
    keep(scripts, ("d", "{}", 0))
    bench.now_ms += later
    assert scripts.run("drivers_alive")[1:] == names


@pytest.mark.parametrize(("paused", "is_told"), [
    (None, False), ("driver claims|d", True), ("operator claims|d", False),
])  # fmt: skip
@pytest.mark.parametrize("is_connected", [0, 1])
def test_who_is_connected_hears_that_its_driver_counts_as_lost(
    bench, scripts, paused, is_told, is_connected
):
    """A connected process learns that its driver is paused as lost.

    The driver's name decides, whichever controllers the process runs.
    """
    bench.client.hset(NAMES["paused"].full, "driver claims|another", f"{NOW + 5} gone")
    if paused is not None:
        bench.client.hset(NAMES["paused"].full, paused, f"{NOW + 5} gone")
    _, lost = keep(scripts, ("d#attacher", "{}", is_connected))
    assert lost == ([b"d"] if is_told and is_connected else [])
    links = NAMES["links"].full + "d"
    assert bench.client.zrange(links, 0, -1, withscores=True) == (
        [(b"p", NOW + 10_000)] if is_connected else []
    )
    if is_connected:
        assert 600_000 < bench.client.ttl(links) <= 604_800
