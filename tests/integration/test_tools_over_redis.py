"""Operators' commands read from Redis and write to Redis."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import yaml

from tests.support.hostile_tools import cluster
from tests.support.taking import take
from workers.cli import audit, doctor, dry_run, explaining, failed, migrate, pause, retry, shadow
from workers.cli import status as status_command
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.settings import RedisSettings, Settings
from workers.config.toolflags import ToolSettings
from workers.errors import ConfigError
from workers.explain import nouns
from workers.explain.audit import Report
from workers.explain.gather import Gatherer
from workers.kube import paths
from workers.observability import trail
from workers.queue.catalog import CatalogWriter
from workers.queue.clock import read_clock
from workers.queue.inspect import read_age
from workers.queue.keys import Key
from workers.queue.names import NAMES
from workers.queue.presence import Presence
from workers.queue.registry import DriverRegistry
from workers.queue.shadows import Shadows
from workers.queue.workqueue import WorkQueue
from workers.tasks.tick import tick

DRIVERS = [f"d{number}.csi.example.org" for number in range(2)]
CONTROLLERS = ["provisioner", "attacher", "snapshotter", "resizer"]
CLAIM = "team/own"
HELD = migrate.Holders({"csi-provisioner": "ns/pod"}, {})


class World:
    """A cluster with a claim of the first driver, and the Redis of a system with two drivers."""

    def __init__(self, client, url):
        self.driver, self.api = DRIVERS[0], cluster(DRIVERS[0])
        self.client, self.url = client, url
        self.queue = WorkQueue(client, publish=lambda _: None)
        CatalogWriter(client).epoch()
        Presence(client).announce("watcher")
        self.queue.register_process()
        for name in DRIVERS:
            record = {"name": name, "queue_name": name, "controllers": CONTROLLERS}
            DriverRegistry(client).register(name, record, ttl_seconds=60)

    def tools(self, command, *arguments, **tool):
        settings = Settings(
            command=command,
            arguments=arguments,
            redis=RedisSettings(url=self.url),
            tool=ToolSettings(**tool),
        )
        made = Tools(settings)
        made.__dict__.update(kube=self.api.kube)
        return made

    def key(self, kind="claims", driver=None):
        return Key(kind, driver or self.driver, CLAIM, "u1")

    def wait_for_room(self, key):
        """Add a key that waits, because no worker takes it."""
        self.queue.set_limits(key.lane, 1)
        self.queue.add([key])

    def fail(self, key, why):
        """Fail one attempt of a key."""
        self.wait_for_room(key)
        self.queue.fail(take(self.queue, key), base_seconds=100, cap_seconds=100, memo=why)


@pytest.fixture
def world(redis_client, redis_server):
    return World(redis_client, redis_server.url)


def states(words, tools):
    """Return the states of waiting, running and retried keys that `explain` finds in Redis."""
    word, name = words.split()
    noun = nouns.find(word)
    namespace, _, short = name.rpartition("/")
    found = [one.state for one in explaining.answers(tools, noun, namespace, short)]
    return [one for one in found if one is not None and one.is_known]


@pytest.mark.parametrize(
    ("words", "kind", "name", "uid"),
    [
        ("pvc team/own", "claims", CLAIM, "u1"),
        ("pv pvc-u1", "volumes", "pvc-u1", ""),
        ("va attached", "attachments", "n/attached", None),
        ("volumesnapshotcontent content", "contents", "content", None),
    ],
)
def test_explain_reads_the_driver_s_own_redis(world, words, kind, name, uid):
    """A waiting key is found by each controller's own rule for its driver."""
    if uid is None:
        resource = paths.ATTACHMENTS if kind == "attachments" else paths.SNAPSHOT_CONTENTS
        if kind == "contents":
            body = {"metadata": {"name": name}, "spec": {"driver": world.driver}}
            world.api.add(resource, body)
        uid = world.api.of(resource, name.rpartition("/")[2])["metadata"]["uid"]
    assert states(words, world.tools(Command.EXPLAIN)) == []
    key = Key(kind, world.driver, name, uid)
    world.wait_for_room(key)
    world.queue.mirror_pauses("1", {f"driver {world.driver}": "0 by hand"})
    (state,) = states(words, world.tools(Command.EXPLAIN))
    assert state.key == key
    assert [one.reason for one in state.pauses] == ["by hand"]


def test_explain_counts_processes(world):
    world.client.delete("csifleet:presence")
    facts = Gatherer(world.tools(Command.EXPLAIN)).claim("team", "own")
    assert (facts.watchers, facts.workers) == (0, 1)


def test_retry_adds_the_key_where_its_driver_is(world, capsys):
    world.fail(world.key(), "{}")
    # a worker does this when a message wakes it
    world.client.delete(f"csifleet:woken:drv.{world.driver}")
    assert retry.run(world.tools(Command.RETRY, "pvc", CLAIM)) == 0
    assert "has been queued" in capsys.readouterr().out
    client = world.client
    assert client.hget("csifleet:fails", world.key().text) is None
    assert client.llen(f"drv.{world.driver}") >= 1, "the message went through that Redis as well"


def items(capsys):
    """Return the items of a list's JSON output."""
    return json.loads(capsys.readouterr().out)["items"]


def test_failed_shows_every_driver_and_replays_one(world, capsys):
    keys = [world.key(driver=driver) for driver in DRIVERS]
    for key in keys:
        world.fail(key, '{"error": "no room"}')
    failed.run(world.tools(Command.FAILED, output="json"))
    assert {one["driver"] for one in items(capsys)} == set(DRIVERS)
    failed.run(world.tools(Command.FAILED, output="json", driver=world.driver, replay=True))
    assert [one["driver"] for one in items(capsys)] == [world.driver]
    failed.run(world.tools(Command.FAILED, output="json"))
    assert {one["driver"] for one in items(capsys)} == {*DRIVERS} - {world.driver}


def test_failed_shows_the_whole_cause_in_a_pipe(world, capsys):
    cause = f"{'x' * 150} on fire"
    with trail.collect():
        trail.note("error", cause)
        world.fail(world.key(), "")
    failed.run(world.tools(Command.FAILED))
    assert cause in capsys.readouterr().out


@pytest.mark.parametrize("command", [Command.PAUSE, Command.DRAIN])
def test_a_driver_is_paused_and_goes_on(world, command):
    lane = world.key().lane
    assert pause.run(world.tools(command, driver=world.driver, reason="why")) == 0
    assert world.queue.stats()[lane].paused == {"operator": "why"}
    assert pause.run(world.tools(Command.RESUME, driver=world.driver)) == 0
    assert not any(one.paused for one in world.queue.stats().values())


def test_drain_waits_for_what_runs_in_the_driver_s_redis(world, capsys):
    key = world.key()
    world.wait_for_room(key)
    lease = take(world.queue, key)
    assert pause.run(world.tools(Command.DRAIN, driver=world.driver, wait_seconds=0)) == 1
    assert "1 task runs" in capsys.readouterr().out
    world.queue.done(lease)
    assert pause.run(world.tools(Command.DRAIN, driver=world.driver, wait_seconds=0)) == 0


def test_a_class_is_paused(world, capsys, monkeypatch):
    """A class is paused and resumed without a driver, because classes belong to the cluster."""
    monkeypatch.setattr(pause.time, "sleep", lambda _: None)
    assert pause.run(world.tools(Command.PAUSE, storage_class="one", reason="why")) == 0
    assert world.client.hget("csifleet:pauses", "class one").endswith(b" why")
    assert pause.run(world.tools(Command.RESUME, storage_class="one")) == 0
    assert "has been resumed" in capsys.readouterr().out
    assert not world.client.exists("csifleet:pauses")


def test_status_shows_all_drivers_and_adds_up(world, capsys):
    for driver in DRIVERS:
        world.fail(world.key(driver=driver), "{}")
    assert status_command.run(world.tools(Command.STATUS, output="json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(DRIVERS) <= report["drivers"].keys()
    assert report["counts"]["failing_keys"] == 2
    assert len(report["watchers"]) == 1
    status_command.run(world.tools(Command.STATUS))
    shown = capsys.readouterr().out
    assert shown.count("redis ") == 1


def test_status_tells_no_limit_from_a_limit_of_none(world, capsys):
    """A missing limit is shown as "-" and not as 0.

    No worker declares a limit for changes if the driver cannot resize.
    """
    world.wait_for_room(world.key())
    world.queue.add([world.key("changes")])
    status_command.run(world.tools(Command.STATUS, output="json"))
    work = json.loads(capsys.readouterr().out)["drivers"][world.driver]["work"]
    assert (work["claims"]["limit"], work["changes"]["limit"]) == (1, None)
    status_command.run(world.tools(Command.STATUS, wide=True))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    limits = {line[2]: line[6] for line in lines if line[:1] == [world.driver]}
    assert limits == {"claims": "1", "changes": "-"}


def test_who_works_is_not_missed_right_after_a_loss_of_data(world, capsys, monkeypatch):
    """Right after a loss of data, status reports no missing
    watcher, because processes register again within seconds.
    """
    world.client.delete("csifleet:presence")
    tools = world.tools(Command.STATUS)
    age = read_age(world.client)
    monkeypatch.setattr(status_command, "_BACK_SECONDS", age + 60)
    assert status_command.run(tools) == 0
    assert "lost its data or began" in capsys.readouterr().out
    monkeypatch.setattr(status_command, "_BACK_SECONDS", age)
    assert status_command.run(tools) == 1
    assert "! no watcher is running" in capsys.readouterr().out


def test_doctor_looks_at_every_redis(world):
    tools = world.tools(Command.DOCTOR)
    found = [*doctor.redis_settings(tools), *doctor.system(tools)]
    names = [one.check for one in found]
    for check in ("redis version", "redis eviction", "clock", "watchers", "workers", "drivers"):
        assert [name for name in names if name.startswith(check)] == [check]
    served = ", ".join(one.text for one in found if one.check.startswith("drivers"))
    assert set(served.split(", ")) == set(DRIVERS)


@pytest.mark.parametrize("is_named", [False, True])
def test_shadow_reports_every_driver(world, is_named, capsys):
    for driver in DRIVERS:
        Shadows(world.client).tell(driver, "/p", "agrees", None)
    wanted = world.driver if is_named else ""
    assert shadow.run(world.tools(Command.SHADOW, "report", output="json", driver=wanted)) == 0
    report = json.loads(capsys.readouterr().out)["drivers"]
    assert set(report) == ({world.driver} if is_named else set(DRIVERS))
    assert {name: one["agreement"] for name, one in report.items()} == dict.fromkeys(report, 1.0)


def test_dry_run_takes_the_catalog(world, monkeypatch, capsys):
    CatalogWriter(world.client).write("classes", [("mark", "1", {"is": "here"})])
    seen = []

    def rehearse(_client, catalog, *, record, **_):
        catalog.refresh(("classes",))
        seen.append((record["name"], catalog._copies["classes"].objects))

    monkeypatch.setattr(dry_run, "rehearse", rehearse)
    monkeypatch.setattr(dry_run, "redact", lambda _: "{}")
    assert dry_run.run(world.tools(Command.DRY_RUN, "pvc", CLAIM)) == 0
    assert seen == [(world.driver, {"mark": {"is": "here"}})]
    assert capsys.readouterr().out.strip() == "{}"


def test_audit_knows_the_attempts(world, monkeypatch, capsys):
    """audit reads the attempts of the driver's Redis.

    Otherwise a volume whose attempt is in flight would look leaked.
    """
    record = {"driver": world.driver, "key": world.key().text, "since": time.time()}
    world.client.hset(f"csifleet:intents:{world.driver}", "pvc-u1", json.dumps(record))
    client = SimpleNamespace(list_volumes=lambda **_: [], close=lambda: None)
    monkeypatch.setattr(audit, "connect", lambda _: (client, world.driver))
    monkeypatch.setattr(audit.snapshotaudit, "obstacle", lambda *_: "no snapshots here")
    monkeypatch.setattr(audit.time, "sleep", lambda _: None)
    monkeypatch.setattr(audit, "compare", lambda *_: Report({}, {}))
    assert audit.run(world.tools(Command.AUDIT, grace_seconds=0.0)) == 0
    assert "1 attempts in flight" in capsys.readouterr().out


@pytest.mark.parametrize(("stage", "orphans"), [("stranded", {"vol-1": 5}), ("calling", {})])
def test_audit_lists_the_volume_of_a_stranded_attempt(world, monkeypatch, capsys, stage, orphans):
    """`audit --delete` accepts only a listed volume.

    No worker saves the PV of an attempt that is stranded, for example after a restore of etcd.
    """
    record = {"driver": world.driver, "key": world.key().text, "since": 1.0, "stage": stage}
    source = {"driver": world.driver, "volumeHandle": "vol-1"}
    pv = {"metadata": {"name": "pvc-u1"}, "spec": {"csi": source}}
    for name, what in (("intents", record), ("unsaved", pv)):
        world.client.hset(f"csifleet:{name}:{world.driver}", "u1", json.dumps(what))
    entry = SimpleNamespace(volume=SimpleNamespace(volume_id="vol-1", capacity_bytes=5))
    page = SimpleNamespace(entries=[entry])
    client = SimpleNamespace(list_volumes=lambda **_: [page], close=lambda: None)
    monkeypatch.setattr(audit, "connect", lambda _: (client, world.driver))
    monkeypatch.setattr(audit.snapshotaudit, "obstacle", lambda *_: "no snapshots here")
    audit.run(world.tools(Command.AUDIT, grace_seconds=0.0, output="json"))
    report = json.loads(capsys.readouterr().out)
    assert report["orphans"] == orphans
    assert set(report["stranded"]) == ({"u1"} if orphans else set())


def test_migrate_finds_who_serves_the_driver(world):
    tools = world.tools(Command.MIGRATE)
    found = list(migrate.both(tools, world.driver, HELD, []))
    assert [one.state for one in found] == [doctor.FAIL]
    assert f"csi-fleet serves {world.driver}" in found[0].text


def test_audit_begins_no_life_of_a_redis(world):
    """audit begins no epoch: it only compares, so it
    writes nothing into a Redis that was just emptied.
    """
    world.client.flushdb()
    tools = world.tools(Command.AUDIT)
    before = audit.read_life(tools.redis)
    assert world.client.dbsize() == 0
    CatalogWriter(world.client).epoch()
    assert audit.read_life(tools.redis) == audit.read_life(tools.redis) != before


def test_beat_is_known_by_its_tick(world, capsys):
    """status and doctor find beat by its tick.

    Beat itself writes no presence; the worker that receives its tick does.
    """
    before = Presence(world.client).alive()
    tick(world.queue, SimpleNamespace(tick=lambda: None))
    assert Presence(world.client).alive() == before
    status_command.run(world.tools(Command.STATUS, output="yaml"))
    assert yaml.safe_load(capsys.readouterr().out)["beat"] is True
    found = {one.check: one.state for one in doctor.system(world.tools(Command.DOCTOR))}
    assert found["beat"] == "ok"


def test_failed_takes_the_namespace_by_flag_too(world, capsys):
    """`failed` accepts the namespace by `-n` and as an argument."""
    world.fail(world.key(), "disk on fire")
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "nowhere"}})
    for arguments, tool in (((), {"namespace": "nowhere"}), (("nowhere",), {})):
        assert failed.run(world.tools(Command.FAILED, *arguments, **tool)) == 0
        assert "no object is failing in nowhere" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="there is no namespace nowere"):
        failed.run(world.tools(Command.FAILED, "nowere"))
    failed.run(world.tools(Command.FAILED, namespace=world.key().tenant))
    assert "team/own" in capsys.readouterr().out


@pytest.mark.parametrize("asked", [1, 3])
def test_status_names_nobody_alive_when_all_processes_died_an_hour_ago(world, asked):
    """No process counts as alive an hour after all of them died.

    The queue's clock has stopped since then; a read neither trusts that clock nor moves it.
    """
    name, client = NAMES["clock"].full, world.client
    stopped = b"%d 0" % (read_clock(client).now_ms - 3_600_000)
    client.set(name, stopped)
    for until in ("drivers_until", "presence", "procs"):
        members = client.zrange(NAMES[until].full, 0, -1, withscores=True)
        for member, score in members:
            client.zadd(NAMES[until].full, {member: score - 3_600_000})
    for _ in range(asked):
        tools = world.tools(Command.STATUS)
        report = status_command.gather(tools)
        assert tools.registry.alive() == {}
        assert report["watchers"] == []
    assert client.get(name) == stopped
