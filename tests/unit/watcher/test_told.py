"""Small parts of the watcher: which receivers get an event, how often, and which do not."""

from __future__ import annotations

import pytest

from tests.support.kube_objects import make_claim, make_volume
from tests.unit.watcher.test_keeper import Scene as KeeperScene
from tests.unit.watcher.test_machine import (
    CLAIMS,
    DRIVER,
    VOLUMES,
    FakeOutbox,
    Rules,
    Scene,
    scopes,
)
from watcher.fanout import FanOut
from watcher.hosted import Hosted
from watcher.keeper import CHECK_SECONDS, FIRST_LOOK_SECONDS, LOOK_SECONDS, Keeper
from watcher.machine import Machine
from workers.kube import paths
from workers.kube.objects import Attachment, Claim
from workers.queue.catalogkinds import KIND_ATTACHMENTS
from workers.queue.keys import Key
from workers.spec import Forget, Kind, Scope, Spec, Watch

KEY = Key("work", "d", "default/claim1")


@pytest.fixture
def scene():
    """Return a scene with one controller that follows claims and volumes, after the first lists."""
    scene = Scene([CLAIMS, VOLUMES])
    scene.machine.begin()
    for name in scene.followed:
        scene[name].list()
    scene.outbox.sent.clear()
    return scene


def test_keys_that_new_drivers_lead_to_are_sent(scene):
    """A new driver may create work for objects that are already known."""
    scene.machine.rules("first").says = [KEY]
    scene.machine.set_records(DRIVER)
    assert scene.outbox.sent == [("add", KEY.text, "")]


def test_a_deletion_forgets_keys_or_adds_some(scene):
    """Whatever the rules return is sent; a key of the deleted object carries its version."""
    scene.machine.rules("first").says = [Forget(KEY), KEY]
    scene["persistentvolumeclaims"].sink.deleted(make_claim(version="7"))
    assert scene.outbox.sent == [("forget", KEY.text), ("add", KEY.text, "7")]


@pytest.mark.parametrize(
    ("subject", "item", "key", "version"),
    [
        (paths.CLAIMS, make_claim(version="7"), Key("k", "d", "default/claim1", "u1"), "7"),
        (paths.CLAIMS, make_claim(version="7"), Key("k", "d", "default/claim1", "u2"), ""),
        (paths.CLAIMS, make_claim(version="7"), Key("k", "d", "claim1", "u1"), ""),
        (paths.CLAIMS, make_claim(version="7"), Key("k", "d", "default/claim1", "@ns"), "7"),
        (paths.VOLUMES, make_claim(version="7"), Key("k", "d", "default/claim1", "u1"), ""),
        (None, make_claim(version="7"), Key("k", "d", "default/claim1", "u1"), ""),
        (paths.CLAIMS, make_claim(version="7"), Key("other", "d", "default/claim1", "u1"), ""),
    ],
)
def test_cor15_only_the_key_of_an_event_s_own_object_has_its_version(subject, item, key, version):
    """COR-15: kind, name and identity decide; a volume's key has a namespace instead of a UID."""
    outbox = FakeOutbox()
    kind = Kind("k", "t", "w", subject=subject)
    hosted = Hosted(Spec("one", "", (kind,), (), Rules), outbox)
    hosted.rules.says = [key]
    hosted.seen(paths.CLAIMS, item, is_listed=False)
    hosted.gone(paths.CLAIMS, item)
    hosted.seen(paths.CLAIMS, item, is_listed=True)
    assert [sent for *_, sent in outbox.sent] == [version, version, ""]


def test_the_key_of_an_object_without_namespace_is_its_name():
    outbox = FakeOutbox()
    kind = Kind("k", "t", "w", subject=paths.VOLUMES)
    hosted = Hosted(Spec("one", "", (kind,), (), Rules), outbox)
    volume = make_volume()
    hosted.rules.says = [Key("k", "d", volume.metadata.name)]
    hosted.seen(paths.VOLUMES, volume, is_listed=False)
    assert outbox.sent[0][2] == str(volume.metadata.resource_version)


def test_a_change_in_a_part_of_a_resource_is_told_and_remembered():
    """CAP-030: an object that a later list omits is gone, even if only an event reported it."""
    scene = Scene([Watch(paths.CLAIMS, Claim, scopes=scopes)])
    scene.machine.begin()
    scene.machine.set_records(DRIVER)
    part = scene["persistentvolumeclaims ns1 a=b"]
    part.list()
    scene.told("first")
    part.sink.changed(make_claim("a", uid="1"))
    part.sink.deleted(make_claim("unknown", uid="2"))
    part.list()
    plural = "persistentvolumeclaims"
    assert scene.told("first") == [
        ("seen", plural, "a"), ("gone", plural, "unknown"), ("gone", plural, "a")
    ]  # fmt: skip


def test_a_receiver_joins_once():
    """A receiver that has already joined needs no new list."""
    made, fan = [], FanOut("/path")
    assert [fan.join(name, lambda: made.append(1)) for name in ("a", "a", "b")] == [
        True,
        False,
        True,
    ]
    assert made == [1, 1]


def test_each_controller_has_its_own_drivers_records():
    """The records are looked up by the controller's name."""
    scene = Scene()
    other = {"name": "bar", "queue_name": "bar", "controllers": ["second"]}
    scene.machine.set_records({"foo": {**DRIVER["foo"], "controllers": ["first"]}, "bar": other})
    names = {
        name: [record["queue_name"] for record in scene.machine.records_of(name)]
        for name in ("first", "second")
    }
    assert names == {"first": ["foo"], "second": ["bar"]}


CATALOGUED = Watch(paths.ATTACHMENTS, Attachment, catalog=KIND_ATTACHMENTS)


def test_m017_what_feeds_the_catalog_is_listed_again_and_nothing_else():
    """This follows a loss of data in Redis; a resource that is not followed cannot be listed."""
    scene = Scene([CATALOGUED, CLAIMS])
    scene.machine.begin()
    scene.machine.relist_catalog()
    scene.machine.relist(["unknown"])
    counts = {name: scene[name].relists for name in scene.followed}
    assert counts == {"volumeattachments": 1, "persistentvolumeclaims": 0}


def test_a_watcher_that_stops_feeds_no_catalog():
    """No watch is followed any longer, so no list can be requested."""
    specs = [Spec("first", "", (), (CATALOGUED,), Rules)]
    machine = Machine(
        specs, FakeOutbox(), chosen=["first"], epoch=str, follow=lambda stream, sink: None
    )
    machine.begin()
    assert (machine.catalog_kinds, machine.reflectors) == ({}, {})


def test_a_controller_runs_as_a_part_of_another():
    """Capacity is a part of the provisioner."""
    scene = Scene([CLAIMS], chosen=["whole"], part_of="whole")
    scene.machine.begin()
    assert scene.followed == {"persistentvolumeclaims"}
    other = Scene([CLAIMS], chosen=["other"], part_of="whole")
    other.machine.begin()
    assert other.followed == set()


def test_a_stream_says_what_is_followed():
    """Its name distinguishes parts of one resource."""
    scene = Scene([Watch(paths.CLAIMS, Claim, scopes=lambda _: [Scope("ns1", "a=b")])])
    scene.machine.begin()
    stream = scene["persistentvolumeclaims ns1 a=b"].stream
    assert (stream.resource, stream.item_type) == (paths.CLAIMS, Claim)
    assert (stream.metadata_only, stream.scope) == (False, Scope("ns1", "a=b"))


@pytest.fixture
def keeping():
    """Return a scene whose keeper is at 0 s; `checks` lists the times of its cache checks."""
    scene = KeeperScene()
    scene.checks = []
    scene.keeper = Keeper(
        *(scene.redis,) * 3,
        on_epoch=scene.epochs.append,
        on_drivers=lambda drivers: scene.drivers.append(list(drivers)),
        on_check=lambda: scene.checks.append(scene.now),
        clock=lambda: scene.now,
    )
    return scene


def test_cor4_the_catalog_is_looked_at_every_few_seconds(keeping):
    """COR-4: it is checked at the start and then once per period, exactly when the period ends."""
    for seconds in (0.0, CHECK_SECONDS - 0.5, CHECK_SECONDS, CHECK_SECONDS + 1, 2 * CHECK_SECONDS):
        keeping.now = seconds
        keeping.keeper.step()
    assert keeping.checks == [0.0, CHECK_SECONDS, 2 * CHECK_SECONDS]


@pytest.mark.parametrize(("seconds", "looks"), [(LOOK_SECONDS / 2, 1), (LOOK_SECONDS, 2)])
def test_redis_is_looked_at_once_each_period(keeping, seconds, looks):
    """This applies once a driver is known; a period ends exactly at its last moment."""
    asked, epoch = [], keeping.redis.epoch
    keeping.redis.epoch = lambda: asked.append(1) or epoch()
    keeping.redis.records = {"foo": {"name": "foo"}}
    keeping.keeper.step()
    keeping.now = seconds
    keeping.keeper.step()
    assert len(asked) == looks


def test_the_next_step_is_sooner_while_no_driver_is_known(keeping):
    """Later the queue maintenance sets the time of the next step."""
    assert keeping.keeper.step() == FIRST_LOOK_SECONDS
    keeping.redis.records = {"foo": {"name": "foo"}}
    assert keeping.keeper.step() == 0.2


def test_only_lost_data_is_warned_of(keeping, caplog):
    """C-148: the first contact with Redis is not a loss."""
    told = "Redis restarted and may have lost its data; adding all keys again"
    keeping.keeper.step()
    assert told not in caplog.messages
    keeping.redis.value = "e2"
    for _ in range(2):
        keeping.now += 1
        keeping.keeper.step()
    assert caplog.messages.count(told) == 1
