"""Each test is one attack with a component's real credentials, on Redis 7 as shipped."""

from __future__ import annotations

import json
import re

import pytest
import redis

from tests.support.secure_redis import DRIVER, DRIVER_USER, SecureRedis
from workers.errors import QueueUnavailable
from workers.queue import scripts
from workers.queue.intents import IntentStore
from workers.queue.keys import Key
from workers.queue.names import NAMES, driver_key
from workers.queue.scripts import Scripts, library
from workers.queue.seal import Seal

KEY = "claims|csi.example.org|default/data|u1"
EVIL = {
    "metadata": {"name": "pvc-u1"},
    "spec": {"hostPath": {"path": "/"}, "claimRef": {"uid": "u1"}},
}
INTENT = {"key": KEY, "claim": {"metadata": {"uid": "u1"}}, "stage": "calling"}


@pytest.fixture(scope="module")
def server(redis_binary, tmp_path_factory):
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def store(server):
    """Return the record store of a worker, with the worker's signing key."""
    with server.client("operator") as client:
        client.flushall()
    key = (server.secrets / "records-key").read_text()
    with server.client("worker") as client:
        yield IntentStore(client, Seal.of_lines([key]), driver=DRIVER)


def both(store, name):
    """Return intent and unsaved PV as a worker accepts them."""
    return store.get(name), store.all_pvs().get(name)


def test_sec2_the_watcher_cannot_have_a_volume_of_its_choice_saved(server, store):
    with server.client("watcher") as client:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.hset(driver_key(client, "unsaved", DRIVER), "pvc-u1", json.dumps(EVIL))
        client.hset(driver_key(client, "intents", DRIVER), "pvc-u1", json.dumps(INTENT))
    assert both(store, "pvc-u1") == (None, None)


@pytest.mark.parametrize("user", ["operator", "worker", DRIVER_USER])
@pytest.mark.parametrize("seal", [Seal(), Seal.of_lines(["0" * 64])], ids=["unsigned", "own key"])
def test_sec2_who_can_write_a_record_but_has_not_the_key_is_not_believed(
    server, store, caplog, user, seal
):
    with server.client(user) as client:
        forger = IntentStore(client, seal, driver=DRIVER)
        forger.created("pvc-u1", INTENT, EVIL)
    assert both(store, "pvc-u1") == (None, None)
    told = [
        record.fields for record in caplog.records if "moved to the quarantine" in record.message
    ]
    assert {(one["field"], one["redis_key"]) for one in told} >= {
        ("pvc-u1", f"csifleet:unsaved:{DRIVER}")
    }
    assert all("was not signed" in one["why"] for one in told)
    assert store.all_pvs() == {}, "set aside, so it is told once"
    store.created("pvc-u1", INTENT, EVIL)
    assert both(store, "pvc-u1") == (INTENT, EVIL), "a worker's own record counts"


def test_sec2_a_workers_record_of_another_volume_is_not_believed(server, store):
    store.created("pvc-u2", INTENT, EVIL)
    with server.client("operator") as client:
        for name in (driver_key(client, "intents", DRIVER), driver_key(client, "unsaved", DRIVER)):
            client.hset(name, "pvc-u1", client.hget(name, "pvc-u2"))
    assert both(store, "pvc-u1") == (None, None)
    assert both(store, "pvc-u2") == (INTENT, EVIL)


NEIGHBOUR = "other.example.org"
VICTIM = Key("claims", NEIGHBOUR, "default/theirs", "u9")
ON_HAND, EPOCH = "seal:default:{}", "epoch"
# Every script that touches a record, called for the victim's key or driver under a forged lease.
# The attacker can write that lease, because all drivers share the hash.
SPOILING = {
    "begin": (NEIGHBOUR, VICTIM.record_name, ON_HAND, "", "", "", 10**6),
    "created": (NEIGHBOUR, VICTIM.record_name, ON_HAND, ON_HAND, "", "", ""),
    "finish": (NEIGHBOUR, VICTIM.record_name, "", "", ""),
    "done": (VICTIM.text, "p", "t", EPOCH, 0, VICTIM.record_name, ""),
    "fail": (VICTIM.text, "p", "t", EPOCH, 0, 1, 1, 1, 0, ON_HAND),
    "mark": (VICTIM.text, "p", "t", EPOCH, ON_HAND),
    "forget": (VICTIM.text,),
    "orphan": (VICTIM.text, "marks", VICTIM.text, ON_HAND),
    "regain": (
        "p",
        "x",
        "",
        1000,
        VICTIM.text,
        "9",
        "t",
        "1",
        "",
        1,
        "marks",
        VICTIM.text,
        ON_HAND,
    ),
    "take": ("p", "new", 1000, "0", NEIGHBOUR, "claims"),
}


RECORDS = [entry for entry in NAMES.values() if entry.by_driver]
FILLED = {
    "hash": lambda client, key: client.hset(key, "field", "1"),
    "string": lambda client, key: client.set(key, "1"),
    "zset": lambda client, key: client.zadd(key, {"member": 1}),
    "set": lambda client, key: client.sadd(key, "member"),
    "list": lambda client, key: client.rpush(key, "member"),
}


def records_of(client, driver):
    """Return all data that Redis has for a driver, by key."""
    keys = [key for one in RECORDS for key in sorted(client.scan_iter(f"{one.full}{driver}*"))]
    return {key: client.dump(key) for key in keys}


@pytest.fixture
def neighbour(server, store):
    """Make a driver with a record of each type; process `p` has the lease of one of its keys."""
    with server.client("tester") as client:
        for one in RECORDS:
            after = f"|{VICTIM.record_name}" if one.name == "saved" else ""
            FILLED[one.type](client, one.full + NEIGHBOUR + after)
        client.set(NAMES["epoch"].full, epoch(client))
        client.hset(NAMES["leases"].full, VICTIM.text, "1 p t 1")
        yield client


def epoch(client):
    return f"x:1:{client.info('server')['run_id']}"


@pytest.mark.parametrize("script", SPOILING)
def test_the_worker_beside_one_driver_reaches_no_record_of_another_by_our_functions(
    server, neighbour, script
):
    """Redis itself refuses the access, with the permissions of the user who calls the function."""
    before = records_of(neighbour, NEIGHBOUR)
    assert len(before) == len(RECORDS)
    if script == "take":
        neighbour.hdel(NAMES["leases"].full, VICTIM.text)
        neighbour.zadd(NAMES["ready"].full + VICTIM.lane, {VICTIM.text: 1})
        neighbour.hset(NAMES["limits"].full + VICTIM.lane, "concurrency", 1)
    args = [epoch(neighbour) if one == EPOCH else one for one in SPOILING[script]]
    with (
        server.client(DRIVER_USER) as client,
        pytest.raises(QueueUnavailable, match="can't access"),
    ):
        Scripts(client).run(script, *args)
    assert records_of(neighbour, NEIGHBOUR) == before
    with server.client("worker") as client:
        Scripts(client).run(script, *args)


def bodies(text, pattern):
    """Return the functions of a Lua file by name, without comments."""
    code = "\n".join(one for one in text.splitlines() if not one.lstrip().startswith("--"))
    return dict(re.findall(pattern, code, re.DOTALL | re.MULTILINE))


def test_every_function_of_ours_that_touches_a_record_is_tried():
    names = {one.name for one in RECORDS if one.owner in {"intents", "counters"}}
    texts = {
        one.name[:-4]: one.read_text() for one in scripts._LUA.iterdir() if one.suffix == ".lua"
    }
    shared = "".join(text for name, text in sorted(texts.items()) if name.startswith("lib"))
    helpers = bodies(shared, r"^local function (\w+)(.*?)^end$")

    def touches(body, known):
        return any(re.search(rf"K\.{name}\b", body) for name in names) or any(
            re.search(rf"\b{name}\(", body) for name in known
        )

    known: set[str] = set()
    while more := {name for name, body in helpers.items() if touches(body, known)} - known:
        known |= more
    assert {"end_attempt", "forget", "state_of"} <= known
    found = {
        name
        for name, text in texts.items()
        if not name.startswith("lib")
        and ("K[ARGV" in text or touches(bodies(f"{text}\nX", r"()(.*)X")[""], known))
    }
    assert found == set(SPOILING)


ENDLESS = "while true do end"


@pytest.mark.parametrize("user", ["watcher", "worker", DRIVER_USER, "beat", "flower", "operator"])
def test_sec5_nobody_can_stop_redis_with_a_script_without_end(server, user):
    with server.client(user) as client:
        for command in (["EVAL", ENDLESS, 0], ["SCRIPT", "LOAD", ENDLESS], ["FUNCTION", "FLUSH"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)
    with server.client("tester") as client:
        assert client.ping()


def test_sec6_the_operator_cannot_give_itself_more(server):
    with server.client("operator") as client:
        for command in ("ACL SETUSER operator +@all", "SLAVEOF h 1", "CONFIG SET dir /tmp"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def test_records_outlive_a_restart(server, store):
    """Records survive a restart, also writes by functions and transactions.

    Nobody can log in as `default`.
    """
    store.created("pvc-u1", INTENT, EVIL)
    server.stop()
    server.serve()
    assert both(store, "pvc-u1") == (INTENT, EVIL)
    assert "AOF-loading-client" not in (server.directory / "redis.log").read_text()
    with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(server.url) as client:
        client.ping()
    for password in ("", "default"):
        login = {"username": "default", "password": password}
        with (
            pytest.raises(redis.AuthenticationError),
            redis.Redis.from_url(server.url, **login) as client,
        ):
            client.ping()


def test_functions_outlive_the_loss_of_all_data(server, store):
    with server.client("operator") as client:
        client.flushall()
    store.put("pvc-u1", INTENT)
    assert store.get("pvc-u1") == INTENT


def test_a_redis_without_our_functions_is_told_with_its_remedy(server):
    with server.client("tester") as tester, server.client("worker") as client:
        tester.function_delete(library()[0])
        with pytest.raises(QueueUnavailable, match=r"Load k8s/base/redis/functions\.lua"):
            IntentStore(client, driver=DRIVER).put("pvc-u1", INTENT)
        tester.function_load(library()[1])
        IntentStore(client, driver=DRIVER).put("pvc-u1", INTENT)
