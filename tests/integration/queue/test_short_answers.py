"""An incomplete reply is an error, because the absence of an object can lead to its deletion."""

from __future__ import annotations

import pytest

from workers.queue import inspect
from workers.queue.capacities import CapacityStore
from workers.queue.catalog import CatalogReader, CatalogWriter
from workers.queue.clock import Clock
from workers.queue.keys import claim_key
from workers.queue.limits import read_stats
from workers.queue.marks import Remembered
from workers.queue.names import NAMES
from workers.queue.recovery import Recovery
from workers.queue.registry import DriverRegistry
from workers.queue.scripts import Scripts
from workers.queue.seal import UNCHECKED
from workers.queue.workqueue import WorkQueue

KEY = claim_key("d", "ns", "a", "u")
OF_FIELDS = {
    "failing keys": lambda r: CapacityStore(r).failing([KEY]),
    "known objects": lambda r: CapacityStore(r).item_of("d", "u"),
    "complete kinds": lambda r: CatalogWriter(r).incomplete(["nodes"], "e"),
    "marks": lambda r: Remembered(r, UNCHECKED).marks_of([KEY]),
    "ages of lanes": read_stats,
    "intents of unsaved volumes": lambda r: Recovery(
        r, WorkQueue(r, publish=lambda _: None)
    ).run(lambda _: []),
}  # fmt: skip
OF_SCRIPTS = {
    "drivers": ([b"1", b"name"], lambda s: DriverRegistry(s.client).alive()),
    "a lease": (
        [
            b"taken",
            [],
            [KEY.text.encode(), b"1", b"1", b"0", b"", b"", b"0", b"e", [b"nodes"], [], b""],
        ],
        lambda s: WorkQueue(s.client, publish=lambda _: None).take("d", ["claims"]),
    ),
    "entries of the catalog": (
        [b"e", [b"nodes", 1, b"1", 1, [b"name"]]],
        lambda s: CatalogReader(s.client).all("nodes"),
    ),
}


@pytest.mark.parametrize("ask", OF_FIELDS.values(), ids=OF_FIELDS)
def test_fields_that_were_asked_for_are_all_answered(redis_client, monkeypatch, ask):
    redis_client.hset(NAMES["capacity_uids"].full + "d", "u", "item")
    redis_client.hset(NAMES["unsaved"].full + "d", "pv", "{}")
    redis_client.zadd(NAMES["ready"].full + KEY.lane, {KEY.text: 1})
    redis_client.sadd(NAMES["lanes"].full, KEY.lane)
    monkeypatch.setattr(redis_client, "hmget", lambda *_: [])
    with pytest.raises(ValueError, match="zip"):
        ask(redis_client)


@pytest.mark.parametrize(("reply", "ask"), OF_SCRIPTS.values(), ids=OF_SCRIPTS)
def test_names_and_values_come_in_pairs(redis_client, monkeypatch, reply, ask):
    scripts = Scripts(redis_client)
    monkeypatch.setattr(Scripts, "run", lambda *_: reply)
    with pytest.raises(ValueError, match="zip"):
        ask(scripts)


class ShortPipe:
    """Returns one result less than it has commands."""

    def __init__(self, pipe):
        self._pipe = pipe

    def __getattr__(self, name):
        return getattr(self._pipe, name)

    def execute(self, **options):
        return self._pipe.execute(**options)[:-1]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(inspect.read_sizes, id="sizes"),
        pytest.param(
            lambda r: Scripts(r).run_each("pace", [["claims|d"], ["claims|e"]]), id="calls together"
        ),
    ],
)
def test_each_command_of_a_pipeline_is_answered(redis_client, monkeypatch, ask):
    pipeline = redis_client.pipeline
    monkeypatch.setattr(redis_client, "pipeline", lambda **of: ShortPipe(pipeline(**of)))
    with pytest.raises(ValueError, match=r"zip|unpack"):
        ask(redis_client)


def test_each_kind_of_pause_is_answered():
    with pytest.raises(ValueError, match="zip"):
        list(inspect._pauses(Clock(0, 0), None, [b"0 why"]))


def test_whoever_reads_all_of_them_is_no_error(redis_client):
    """The same reads succeed with complete replies."""
    redis_client.hset(NAMES["unsaved"].full + "d", "pv", "{}")
    redis_client.zadd(NAMES["ready"].full + KEY.lane, {KEY.text: 1})
    redis_client.sadd(NAMES["lanes"].full, KEY.lane)
    for ask in OF_FIELDS.values():
        ask(redis_client)
    assert DriverRegistry(redis_client).alive() == {}
