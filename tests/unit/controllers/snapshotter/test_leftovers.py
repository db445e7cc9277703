"""An attempt leaves nothing behind, and an unreadable intent copy is ignored."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from tests.support.fake_context import Death
from tests.support.snapshot_world import CONTENT, CONTENT_KEY
from tests.unit.controllers.snapshotter.test_crash_points import TIMEOUT, Life
from tests.unit.controllers.snapshotter.test_overtaken_calls import dies_in_its_call, quick
from watcher.intents import restore_intents
from workers import constants as k
from workers.controllers.snapshotter.intent import copy_name
from workers.errors import DriverAway
from workers.kube import paths
from workers.kube.errors import ServerError

CUT_OFF = CsiError(errors.UNAVAILABLE, "Socket closed", from_transport=True)


# Unreadable copies.
@pytest.mark.parametrize(
    "record",
    [
        '{"key":"x","name":"n","volumes":[],"open":true,"deadline":' + "9" * 400 + "}",
        '{"key":' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=["huge number", "deep"],
)
def test_a_copy_that_nobody_can_read_is_none(record):
    life = Life([])
    life.somebody_forces()
    body = {
        "metadata": {"name": copy_name(CONTENT_KEY), "namespace": "fleet"},
        "data": {"record": record},
    }
    life.world.api.add(paths.CONFIG_MAPS, body)
    assert life.world.run_content().action.value == "done"


def test_the_watcher_passes_a_copy_by_that_nobody_can_read():
    good = '{"key":"' + CONTENT_KEY.text + '"}'
    maps = [
        {
            "metadata": {"name": "a"},
            "data": {"record": '{"key":' + "[" * 100_000 + "]" * 100_000 + "}"},
        },
        {"metadata": {"name": "b"}, "data": {"record": good}},
    ]

    class Resources:
        def list_config_maps(self, *_: Any) -> Any:
            return maps

    found = restore_intents(Resources(), "fleet", None, {CONTENT_KEY.driver})  # type: ignore[arg-type]
    assert [one.text for one in found] == [CONTENT_KEY.text]


# The key's state shows that a copy is stale.
@pytest.mark.parametrize("ends", ["in order", "by force"])
def test_a_copy_that_could_not_be_removed_takes_no_reported_snapshot(ends):
    life = Life([("after", TIMEOUT)])  # policy Delete
    life.world.run_content()
    assert life.world.api.of(paths.CONFIG_MAPS, copy_name(CONTENT_KEY), "fleet")
    kube, real = life.world.context.effects.kube, life.world.context.effects.kube.delete_config_map

    def refused(*_: Any, **__: Any) -> Any:
        raise ServerError(500, "InternalError", "not now")

    kube.delete_config_map = refused
    life.world.run_content()  # the snapshot is ready; the copy stays, and the key's state shows it
    assert life.world.content()["status"]["readyToUse"] is True
    assert life.world.queue.marks[CONTENT_KEY.text].get("stale")
    if ends == "in order":  # the user keeps the snapshot
        policy = {"spec": {"deletionPolicy": "Retain"}}
        life.world.api.change(paths.SNAPSHOT_CONTENTS, CONTENT, policy)
        life.user_deletes()
        life.world.run_content()
    else:
        life.somebody_forces()
    assert life.world.content() is None
    kube.delete_config_map = real
    life.live()  # the watcher adds the key of the copy
    assert life.storage.snapshots, "the snapshot was its user's"


# Key state that is never removed, and calls that are not awaited.
def test_an_overtaken_call_of_an_object_that_is_gone_leaves_no_mark():
    life = Life([])
    dies_in_its_call(life)
    life.world.run_content()  # the snapshot is ready, and {"overtaken"} stays
    life.somebody_forces()  # found by a relist: a key is added, no Forget
    outcome = life.world.run_content()
    assert outcome.action.value == "wait" or life.world.queue.marks == {}


# The connection breaks; the driver continues (workers.drivers.pace: "the call may have arrived").
@pytest.mark.parametrize("end", [CUT_OFF, DriverAway("gone")], ids=["broken", "away"])
def test_a_call_whose_connection_broke_is_waited_for(end):
    life = Life([])
    life.world.client.respond({"CreateSnapshot": [end, life.storage.create]})
    with suppress(DriverAway):
        life.world.run_content()
    request = life.world.client.requests("CreateSnapshot")[0]
    life.world.run_content()  # the snapshot is created
    life.user_deletes()
    quick(life)
    life.storage.create(request)  # the driver finishes the first call within its deadline
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


# The worker and Redis fail together (`csi-fleet run`), and the driver continues.
@pytest.mark.parametrize("is_slow", [False, True], ids=["no copy", "copied"])
def test_a_dead_call_is_waited_for_although_redis_was_lost(is_slow):
    life = Life([])
    out: list[Any] = []
    client, call = life.world.client, life.world.client.call

    def begun(method: str, request: Any, *_: Any, on_slow: Any = None, **__: Any) -> Any:
        out.append(request)
        if is_slow:
            on_slow()
        raise Death(method)

    client.call = begun  # type: ignore[method-assign]
    with pytest.raises(Death):
        life.world.run_content()
    client.call = call  # type: ignore[method-assign]
    life.redis_is_lost()
    life.world.run_content()  # the next worker creates the snapshot
    life.user_deletes()
    quick(life)
    life.storage.create(out[0])
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


# A Go sidecar created and reported the snapshot while the dead worker's call runs.
def test_a_dead_call_is_waited_for_although_another_sidecar_reported():
    life = Life([])
    ends = dies_in_its_call(life)
    handle = life.storage.create(
        life.world.client.requests("CreateSnapshot")[0]
        if life.world.client.requests("CreateSnapshot")
        else _request()
    )
    status = {"snapshotHandle": handle["snapshot"]["snapshot_id"], "readyToUse": True}
    life.world.api.change(
        paths.SNAPSHOT_CONTENTS,
        CONTENT,
        {"metadata": {"annotations": {k.ANN_BEING_CREATED: None}}, "status": status},
    )
    life.user_deletes()
    quick(life)
    ends()
    life.live()
    assert life.world.content() is None
    assert life.storage.snapshots == {}, "nobody knows of it"


def _request() -> Any:
    return csi.CreateSnapshotRequest(name="snapshot-u1", source_volume_id="h1")
