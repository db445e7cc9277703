"""One attacker per finding, with the real credentials of a component, at Redis 7 as shipped."""

from __future__ import annotations

import json

import pytest
import redis

from tests.support.secure_redis import DRIVER_USER, SecureRedis
from workers.errors import QueueUnavailable
from workers.queue.intents import IntentStore
from workers.queue.names import NAMES
from workers.queue.scripts import library
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
    """A worker's view, with its key."""
    with server.client("operator") as client:
        client.flushall()
    key = (server.secrets / "records-key").read_text()
    with server.client("worker") as client:
        yield IntentStore(client, Seal.of_lines([key]))


def both(store, name):
    """Intent and unsaved PV as a worker believes them."""
    return store.get(name), store.all_pvs().get(name)


def test_sec2_the_watcher_cannot_have_a_volume_of_its_choice_saved(server, store):
    with server.client("watcher") as client:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.hset(NAMES["unsaved"].full, "pvc-u1", json.dumps(EVIL))
        client.hset(NAMES["intents"].full, "pvc-u1", json.dumps(INTENT))
    assert both(store, "pvc-u1") == (None, None)


@pytest.mark.parametrize("user", ["operator", "worker", DRIVER_USER])
@pytest.mark.parametrize("seal", [Seal(), Seal.of_lines(["0" * 64])], ids=["unsigned", "own key"])
def test_sec2_who_can_write_a_record_but_has_not_the_key_is_not_believed(
    server, store, caplog, user, seal
):
    with server.client(user) as client:
        forger = IntentStore(client, seal)
        forger.created("pvc-u1", INTENT, EVIL)
    assert both(store, "pvc-u1") == (None, None)
    told = [record.fields for record in caplog.records if "set aside" in record.message]
    assert {(one["field"], one["redis_key"]) for one in told} >= {("pvc-u1", "csifleet:unsaved")}
    assert all("not by a worker" in one["why"] for one in told)
    assert store.all_pvs() == {}, "set aside, so it is told once"
    store.created("pvc-u1", INTENT, EVIL)
    assert both(store, "pvc-u1") == (INTENT, EVIL), "a worker's own record counts"


def test_sec2_a_workers_record_of_another_volume_is_not_believed(server, store):
    store.created("pvc-u2", INTENT, EVIL)
    with server.client("operator") as client:
        for name in (NAMES["intents"].full, NAMES["unsaved"].full):
            client.hset(name, "pvc-u1", client.hget(name, "pvc-u2"))
    assert both(store, "pvc-u1") == (None, None)
    assert both(store, "pvc-u2") == (INTENT, EVIL)


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
    """What a function or a transaction wrote too, though nobody may log in as the default user."""
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
        with pytest.raises(QueueUnavailable, match=r"load k8s/base/redis/functions\.lua"):
            IntentStore(client).put("pvc-u1", INTENT)
        tester.function_load(library()[1])
        IntentStore(client).put("pvc-u1", INTENT)
