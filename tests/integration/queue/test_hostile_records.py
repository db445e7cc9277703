"""Damaged data in Redis stops no reader and changes no other key's records.

In each case one Redis key of csi-fleet gets arbitrary bytes, arbitrary JSON, a valid record that is
cut or changed, or the valid record of another key, also with another type. Then all readers run, in
a random order. FUZZ_CASES=10000 (`make fuzz`) makes a long run.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.hostile_redis import READERS, REMEMBERED, SLOW, Hostile
from workers import queue as queue_package
from workers.errors import CatalogIncomplete, LeaseLost, QueueUnavailable
from workers.queue.names import NAMES, RedisName
from workers.queue.scripts import script_names

CASES = int(os.environ.get("FUZZ_CASES", "134"))
ATTEMPTS = 3
SOURCES = Path(next(iter(queue_package.__path__)))
READS = {
    *("get", "hget", "hgetall", "hmget", "hscan", "hscan_iter", "hkeys", "hlen", "hexists"),
    *("zrange", "zrangebyscore", "zrangebylex", "zscan_iter", "zscore", "zmscore", "zrank"),
    *("zcard", "zcount", "smembers", "sismember", "lrange", "scan_iter", "run", "run_each"),
}
# Variables that hold a client, a pipeline or the scripts.
SPEAKERS = re.compile(r"(\bclient|_client|\bpipe|scripts|_heartbeats)$")
# These files read no records: they use the library, another address, or loop over functions that
# run here.
APART = {"asyncsentinels.py", "sentinels.py", "connection.py", "leases.py", "seal.py"}


class Snapshot:
    """The content of the filled Redis, restored before each case."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        Hostile(client).fill()
        self.keys = {key: (client.dump(key), client.pttl(key)) for key in client.scan_iter("*")}
        self.values = [*self._values()]

    def restore(self) -> None:
        pipe = self.client.pipeline(transaction=False)
        pipe.flushall()
        for key, (content, ttl) in self.keys.items():
            pipe.restore(key, max(ttl, 0), content)
        pipe.execute()

    def places(self, entry: RedisName) -> list[bytes]:
        """Return the keys under this name, or a made-up key if there are none."""
        name = entry.full.encode()
        found = [
            key for key in self.keys if (key.startswith(name) if entry.is_family else key == name)
        ]
        return sorted(found) or [name + b"claims|d" if entry.is_family else name]

    def _values(self) -> Iterator[bytes]:
        for key in sorted(self.keys):
            match self.client.type(key):
                case b"hash":
                    yield from (part for pair in self.client.hgetall(key).items() for part in pair)
                case b"zset":
                    yield from self.client.zrange(key, 0, -1)
                case b"set":
                    yield from self.client.smembers(key)
                case b"list":
                    yield from self.client.lrange(key, 0, -1)
                case b"string":
                    yield self.client.get(key) or b""


@pytest.fixture(scope="module")
def filled(redis_server):
    client = redis.Redis.from_url(redis_server.unix_url)
    client.flushall()
    yield Snapshot(client)
    client.flushall()
    client.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
).map(lambda value: json.dumps(value).encode())
NUMBERS = st.sampled_from([b"", b"0", b"-1", b"1e400", b"nan", b"-inf", b"0x10", b"9" * 40, b"1.5"])


@st.composite
def poison(draw, valid: list[bytes]) -> bytes:
    """Draw a text that an attacker could write."""
    known = draw(st.sampled_from(valid))
    at = draw(st.integers(0, len(known)))
    changed = known[:at] + draw(st.binary(max_size=4)) + known[at + draw(st.integers(0, 4)) :]
    found: bytes = draw(
        st.one_of(st.binary(max_size=40), JSON, NUMBERS, st.just(known), st.just(changed))
    )
    return found


def spoil(
    world: Hostile, entry: RedisName, place: bytes, draw: st.DataObject, valid: list[bytes]
) -> bytes:
    """Write a hostile value; return the damaged member or field, or b"" for the whole key."""
    client, text = world.client, poison(valid)
    if draw.draw(st.integers(0, 9), label="wrong type if 0") == 0:
        client.delete(place)
        (client.set if entry.type != "string" else client.rpush)(place, draw.draw(text))
        return b""
    value = draw.draw(text, label="value")
    match entry.type:
        case "string":
            client.set(place, value)
        case "hash":
            fields = client.hkeys(place)
            names = st.sampled_from(fields) | text if fields else text
            name: bytes = draw.draw(names, label="field")
            client.hset(place, name, value)
            return name
        case "zset":
            scores = st.floats(allow_nan=False) | st.sampled_from([0.0, 1e15, 2e12])
            client.zadd(place, {value: draw.draw(scores, label="score")})
        case "set":
            client.sadd(place, value)
        case "list":
            client.rpush(place, value)
    return value


def attempted(read: Callable[[], Any]) -> Any:
    """Call a reader with the repetitions of its caller."""
    for _ in range(ATTEMPTS - 1):
        with suppress(QueueUnavailable, LeaseLost):  # a stalled machine loses leases too
            return read()
    return read()


def run(world: Hostile, name: str) -> None:
    """Run one of `READERS`. An incomplete catalog is no failure: the watcher rewrites it."""
    with suppress(CatalogIncomplete):
        attempted(lambda: READERS[name](world))


def remembered(client: redis.Redis) -> dict[str, bytes | None]:
    """Return the records of the other key."""
    pipe = client.pipeline(transaction=False)
    for key, name in REMEMBERED.items():
        pipe.hget(key, name)
    return dict(zip(REMEMBERED, pipe.execute(raise_on_error=False), strict=True))


@pytest.mark.parametrize("entry", NAMES.values(), ids=NAMES)
def test_no_reader_dies_and_no_other_keys_records_change(filled, entry):
    @settings(
        max_examples=max(1, -(-CASES // len(NAMES))),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        database=None,
        phases=[Phase.generate],
    )
    @given(st.data())
    def case(data):
        filled.restore()
        world = Hostile(filled.client)
        before = remembered(filled.client)
        place = data.draw(st.sampled_from(filled.places(entry)), label="key")
        spoiled = spoil(world, entry, place, data, filled.values)
        order = list(READERS)
        seed = data.draw(st.integers(0, 9999), label="order")
        random.Random(seed).shuffle(order)
        world.queue.heartbeat()
        # the worker reads its own record or none; in odd cases another reader meets the damage
        # first
        if seed % 2:
            for found, written in attempted(lambda: [*world.believed()]):
                assert found in ({}, None, written)
        for name in order:
            if not name.startswith("command") or seed % SLOW == 0:
                run(world, name)
        after = remembered(filled.client)
        if place.decode() in REMEMBERED and spoiled in {b"", REMEMBERED[place.decode()].encode()}:
            before.pop(place.decode()), after.pop(place.decode())
        assert after == before

    case()


# Values with which a run of 10,000 cases stopped a reader.
FOUND = [
    pytest.param(
        "capacity", ":d", b"item", b'{"epoch":"7a14425e\x97"}', id="JSON that is no UTF-8"
    ),
    pytest.param("unsaved", ":d", b"g\x8a", b'ab:rest:{"u\xdd":1}', id="a PV that is no UTF-8"),
    pytest.param("unsaved", ":d", b"deep", b"ab:rest:" + b"[" * 9999, id="a PV that is too deep"),
    pytest.param("intents", ":d", b"deep", b"ab:rest:" + b"[" * 9999, id="an intent too deep"),
    pytest.param("versions", "", b"drivers", b"dc12f5b2", id="a version that is no number"),
    pytest.param("abandoned", "", b"clai\xdc\x16\x96|d|a/b|u", 1.1, id="a key written otherwise"),
]


@pytest.mark.parametrize(("name", "of", "field", "value"), FOUND)
def test_what_the_fuzz_found_harms_no_reader(filled, name, of, field, value):
    for read in READERS:
        filled.restore()
        world, place = Hostile(filled.client), f"csifleet:{name}{of}"
        if isinstance(value, float):
            filled.client.zadd(place, {field: value})
        else:
            filled.client.hset(place, field, value)
        run(world, read)


def readers_in_source() -> set[tuple[str, str]]:
    """Return file and function of every function in workers/queue that reads from Redis."""
    found = set()
    for path in sorted(SOURCES.glob("*.py")):
        if path.name not in APART:
            for scope, node in functions(ast.parse(path.read_text())):
                if any(map(is_read, ast.walk(node))):
                    found.add((path.name, scope))
    return found


def is_read(node: ast.AST) -> bool:
    call = node.func if isinstance(node, ast.Call) else None
    is_word = isinstance(call, ast.Attribute) and call.attr in READS
    return is_word and bool(SPEAKERS.search(ast.unparse(call.value)))


def functions(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{scope}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{scope}{node.name}", node


def test_every_function_that_reads_and_every_script_is_fuzzed(filled, monkeypatch):
    ran: set[tuple[str, str]] = set()
    scripts: set[str] = set()

    def profile(frame, event, _argument):
        code = frame.f_code
        if event == "call" and Path(code.co_filename).parent == SOURCES:
            ran.add((Path(code.co_filename).name, code.co_qualname))
            if code.co_qualname in {"Scripts.run", "Scripts.run_each"}:
                scripts.add(frame.f_locals["name"])

    sys.setprofile(profile)
    try:
        for name in READERS:
            filled.restore()
            world = Hostile(filled.client)
            world.queue.register_process()
            READERS[name](world)
    finally:
        sys.setprofile(None)
    missing = readers_in_source() - ran
    assert missing == set(), "read from Redis, but no entry of READERS runs them"
    assert set(script_names()) - scripts == set(), "scripts that no entry of READERS runs"
