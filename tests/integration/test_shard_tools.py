"""Every command over one Redis and over two shards: it asks the one whose driver it is, or all.

The two shards are two databases of one server. What a command does for a driver must be the same in
both cases, must show in the driver's own Redis, and must leave the other one as it was.
"""

from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace

import pytest

from tests.support.hostile_tools import cluster
from tests.support.processes import free_port
from workers.cli import audit, doctor, dry_run, explain, failed, migrate, pause, retry, shadow
from workers.cli import status as status_command
from workers.cli.tools import Tools
from workers.config.flags import TOOLS, Command
from workers.config.settings import RedisSettings, Settings
from workers.config.shard import Shard, place
from workers.config.toolflags import ToolSettings
from workers.errors import ConfigError, WrongShard
from workers.explain.audit import Report
from workers.explain.gather import Gatherer
from workers.kube import paths
from workers.queue.catalog import CatalogWriter
from workers.queue.connection import connect
from workers.queue.inspect import read_age
from workers.queue.keys import Key
from workers.queue.presence import Presence
from workers.queue.registry import DriverRegistry
from workers.queue.shadows import Shadows
from workers.queue.workqueue import WorkQueue

NAMES = [f"d{number}.csi.example.org" for number in range(20)]
DRIVERS = [next(name for name in NAMES if place(name, 2) == index) for index in range(2)]
CONTROLLERS = ["provisioner", "attacher", "snapshotter", "resizer"]
# Without Redis: nothing of them is sharded.
APART = {Command.SECRET_ROLES, Command.COMPLETION}
COUNTS = [1, 2]
CLAIM = "team/own"
HELD = migrate.Holders({"csi-provisioner": "ns/pod"}, {})


class World:
    """A cluster with a claim of one driver, and as many shards as wanted, all of them served."""

    def __init__(self, server, count, driver):
        self.driver, self.api = driver, cluster(driver)
        host = f"redis://127.0.0.1:{server.port}"
        self.urls = [f"{host}/{number}" for number in range(1, count + 1)]
        self.clients = []
        for index, url in enumerate(self.urls):
            client = connect(url, shard=Shard(index, count))
            client.flushdb()
            self.clients.append(client)
            CatalogWriter(client).epoch()
            Presence(client).announce("watcher")
        self.queues = [WorkQueue(one, publish=lambda _: None) for one in self.clients]
        for name in DRIVERS:
            at = place(name, count)
            self.queues[at].register_process()
            record = {"name": name, "queue_name": name, "controllers": CONTROLLERS}
            DriverRegistry(self.clients[at]).register(name, record, ttl_seconds=60)

    @property
    def index(self):
        return place(self.driver, len(self.urls))

    def tools(self, command, *arguments, urls=None, **tool):
        shards = tuple(RedisSettings(url=url) for url in urls or self.urls)
        settings = Settings(
            command=command,
            arguments=arguments,
            redis=shards[0],
            redis_shards=shards,
            tool=ToolSettings(**tool),
        )
        made = Tools(settings)
        made.__dict__.update(kube=self.api.kube)
        return made

    def key(self, kind="claims", driver=None):
        name = self.driver if driver is None else driver
        return Key(kind, name, CLAIM, "u1")

    def wait_for_room(self, key):
        """The key waits where its driver's workers are; its ticket is out and nobody took it."""
        queue = self.queues[place(key.driver, len(self.urls))]
        queue.set_limits(key.lane, 1)
        queue.add([key])

    def fail(self, key, why):
        """One attempt of a key fails."""
        queue = self.queues[place(key.driver, len(self.urls))]
        self.wait_for_room(key)
        queue.fail(queue.take(key), base_seconds=100, cap_seconds=100, memo=why)

    def others(self):
        """What stands in the Redis of which this driver is not, without what passes by itself."""
        found = {}
        for client in self.clients[: self.index] + self.clients[self.index + 1 :]:
            names = [name for name in client.scan_iter("*") if b"guard" not in name]
            found |= {(id(client), name): client.dump(name) for name in names}
        return found


@pytest.fixture
def make_world(redis_server):
    """Makes one; empties its databases afterwards."""
    made = []

    def make(count, driver=DRIVERS[0]):
        made.append(World(redis_server, count, driver))
        return made[-1]

    yield make
    for world in made:
        for client in world.clients:
            client.flushdb()
            client.close()


@pytest.fixture(
    params=list(itertools.product(COUNTS, DRIVERS)), ids=lambda one: f"{one[0]} {one[1]}"
)
def world(request, make_world):
    """One or two shards, a driver of the first or of the second one."""
    return make_world(*request.param)


def states(words, tools):
    """What `explain` found in Redis of keys that wait, run or come again."""
    word, name = words.split()
    noun = explain.nouns.find(word)
    namespace, _, short = name.rpartition("/")
    found = [one.state for one in explain.answers(tools, noun, namespace, short)]
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
    """A key that waits is seen there, by every controller's own way to its driver."""
    if uid is None:
        resource = paths.ATTACHMENTS if kind == "attachments" else paths.SNAPSHOT_CONTENTS
        if kind == "contents":
            body = {"metadata": {"name": name}, "spec": {"driver": world.driver}}
            world.api.add(resource, body)
        uid = world.api.of(resource, name.rpartition("/")[2])["metadata"]["uid"]
    before = world.others()
    assert states(words, world.tools(Command.EXPLAIN)) == []
    key = Key(kind, world.driver, name, uid)
    world.wait_for_room(key)
    world.queues[world.index].pause(key.lane, "by hand")
    (state,) = states(words, world.tools(Command.EXPLAIN))
    assert state.key == key
    assert [one.reason for one in state.pauses] == ["by hand"]
    assert world.others() == before


def test_explain_counts_the_processes_of_the_driver_s_shard(world):
    """Another shard's watcher is none for this claim."""
    world.clients[world.index].delete("csifleet:presence")
    facts = Gatherer(world.tools(Command.EXPLAIN)).claim("team", "own")
    assert (facts.watchers, facts.workers) == (0, 1)


def test_retry_adds_the_key_where_its_driver_is(world, capsys):
    before = world.others()
    world.fail(world.key(), "{}")
    assert retry.run(world.tools(Command.RETRY, "pvc", CLAIM)) == 0
    assert "is queued" in capsys.readouterr().out
    client = world.clients[world.index]
    assert client.hget("csifleet:fails", world.key().text) is None
    assert client.llen(f"drv.{world.driver}") >= 1, "the ticket went through that Redis as well"
    assert world.others() == before


def test_failed_shows_every_shard_and_replays_each_at_home(world, capsys):
    keys = [world.key(driver=driver) for driver in DRIVERS]
    for key in keys:
        world.fail(key, '{"error": "no room"}')
    failed.run(world.tools(Command.FAILED, output="json"))
    assert {one["driver"] for one in json.loads(capsys.readouterr().out)} == set(DRIVERS)
    failed.run(world.tools(Command.FAILED, output="json", driver=world.driver, replay=True))
    assert [one["driver"] for one in json.loads(capsys.readouterr().out)] == [world.driver]
    failed.run(world.tools(Command.FAILED, output="json"))
    assert {one["driver"] for one in json.loads(capsys.readouterr().out)} == {*DRIVERS} - {
        world.driver
    }


@pytest.mark.parametrize("command", [Command.PAUSE, Command.DRAIN])
def test_a_driver_is_paused_where_it_is_and_nowhere_else(world, command):
    before = world.others()
    lane = world.key().lane
    assert pause.run(world.tools(command, driver=world.driver, reason="why")) == 0
    assert world.queues[world.index].stats()[lane].paused == {"operator": "why"}
    assert world.others() == before
    assert pause.run(world.tools(Command.RESUME, driver=world.driver)) == 0
    assert not any(one.paused for one in world.queues[world.index].stats().values())
    assert world.others() == before


def test_drain_waits_for_what_runs_in_the_driver_s_redis(world, capsys):
    key = world.key()
    world.wait_for_room(key)
    lease = world.queues[world.index].take(key)
    assert pause.run(world.tools(Command.DRAIN, driver=world.driver, wait_seconds=0)) == 1
    assert "1 tasks run" in capsys.readouterr().out
    world.queues[world.index].done(lease)
    assert pause.run(world.tools(Command.DRAIN, driver=world.driver, wait_seconds=0)) == 0


def test_a_class_is_paused_in_every_shard(world, capsys, monkeypatch):
    """Classes are the cluster's: no command has to know whose driver one names."""
    monkeypatch.setattr(pause.time, "sleep", lambda _: None)
    assert pause.run(world.tools(Command.PAUSE, storage_class="one", reason="why")) == 0
    for client in world.clients:
        assert client.hget("csifleet:class_pauses", "one").endswith(b" why")
    assert pause.run(world.tools(Command.RESUME, storage_class="one")) == 0
    assert "goes on" in capsys.readouterr().out
    assert not any(client.exists("csifleet:class_pauses") for client in world.clients)


def test_status_shows_all_drivers_and_adds_up(world, capsys):
    for driver in DRIVERS:
        world.fail(world.key(driver=driver), "{}")
    assert status_command.run(world.tools(Command.STATUS, output="json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(DRIVERS) <= report["drivers"].keys()
    assert report["counts"]["failing_keys"] == 2
    assert len(report["watchers"]) == len(world.urls)
    assert list(report.get("shards", {})) == (["0/2", "1/2"] if world.urls[1:] else [])
    status_command.run(world.tools(Command.STATUS))
    shown = capsys.readouterr().out
    assert shown.count("redis ") == len(world.urls)
    assert ("shard 1/2" in shown) is bool(world.urls[1:])


def test_status_tells_no_limit_from_a_limit_of_none(make_world, capsys):
    """Nobody declared a limit for the changes of a driver that cannot resize: none is not 0."""
    world = make_world(1)
    world.wait_for_room(world.key())
    world.queues[0].add([world.key("changes")])
    status_command.run(world.tools(Command.STATUS, output="json"))
    work = json.loads(capsys.readouterr().out)["drivers"][world.driver]["work"]
    assert (work["claims"]["limit"], work["changes"]["limit"]) == (1, None)
    status_command.run(world.tools(Command.STATUS))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    limits = {line[2]: line[6] for line in lines if line[:1] == [world.driver]}
    assert limits == {"claims": "1", "changes": "-"}


def test_status_says_which_shard_has_a_problem(make_world, capsys, monkeypatch):
    world = make_world(2)
    world.clients[1].delete("csifleet:presence")
    monkeypatch.setattr(status_command, "_BACK_SECONDS", 0)
    assert status_command.run(world.tools(Command.STATUS)) == 1
    assert "! shard 1/2: no watcher is alive" in capsys.readouterr().out


def test_who_works_is_not_missed_right_after_a_loss_of_data(make_world, capsys, monkeypatch):
    """Watchers and workers say within seconds again that they live; nobody has to look."""
    world = make_world(1)
    world.clients[0].delete("csifleet:presence")
    tools = world.tools(Command.STATUS)
    age = read_age(world.clients[0])
    monkeypatch.setattr(status_command, "_BACK_SECONDS", age + 60)
    assert status_command.run(tools) == 0
    assert "lost its data or began" in capsys.readouterr().out
    monkeypatch.setattr(status_command, "_BACK_SECONDS", age)
    assert status_command.run(tools) == 1
    assert "! no watcher is alive" in capsys.readouterr().out


def test_doctor_looks_at_every_redis(world):
    tools = world.tools(Command.DOCTOR)
    found = [*doctor.redis_settings(tools), *doctor.system(tools)]
    names = [one.check for one in found]
    marks = [" of shard 0/2", " of shard 1/2"] if world.urls[1:] else [""]
    for check in ("redis version", "redis eviction", "clock", "watchers", "workers", "drivers"):
        assert [name for name in names if name.startswith(check)] == [check + m for m in marks]
    served = ", ".join(one.text for one in found if one.check.startswith("drivers"))
    assert set(served.split(", ")) == set(DRIVERS)


@pytest.mark.parametrize("is_named", [False, True])
def test_shadow_reports_every_driver(world, is_named, capsys):
    for driver in DRIVERS:
        client = world.clients[place(driver, len(world.urls))]
        Shadows(client).tell(driver, "/p", "agrees", None)
    wanted = world.driver if is_named else ""
    assert shadow.run(world.tools(Command.SHADOW, "report", output="json", driver=wanted)) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == ({world.driver} if is_named else set(DRIVERS))
    assert {name: one["agreement"] for name, one in report.items()} == dict.fromkeys(report, 1.0)


def test_dry_run_takes_the_catalog_of_the_driver_s_shard(world, monkeypatch, capsys):
    CatalogWriter(world.clients[world.index]).write("classes", [("mark", "1", {"is": "here"})])
    seen = []

    def rehearse(_client, catalog, *, record, **_):
        catalog.refresh(("classes",))
        seen.append((record["name"], catalog._copies["classes"].objects))

    monkeypatch.setattr(dry_run, "rehearse", rehearse)
    monkeypatch.setattr(dry_run, "redact", lambda _: "{}")
    assert dry_run.run(world.tools(Command.DRY_RUN, "pvc", CLAIM)) == 0
    assert seen == [(world.driver, {"mark": {"is": "here"}})]
    assert capsys.readouterr().out.strip() == "{}"


def test_audit_knows_the_attempts_of_the_driver_s_shard(world, monkeypatch, capsys):
    """An attempt in another Redis would make a volume that is being created look leaked."""
    record = {"driver": world.driver, "key": world.key().text, "since": time.time()}
    world.clients[world.index].hset("csifleet:intents", "pvc-u1", json.dumps(record))
    client = SimpleNamespace(list_volumes=lambda **_: [], close=lambda: None)
    monkeypatch.setattr(audit, "connect", lambda _: (client, world.driver))
    monkeypatch.setattr(audit.snapshotaudit, "obstacle", lambda *_: "no snapshots here")
    monkeypatch.setattr(audit.time, "sleep", lambda _: None)
    monkeypatch.setattr(audit, "compare", lambda *_: Report({}, {}))
    assert audit.run(world.tools(Command.AUDIT, grace_seconds=0.0)) == 0
    assert "1 attempts in flight" in capsys.readouterr().out


def test_migrate_finds_who_serves_the_driver(world):
    tools = world.tools(Command.MIGRATE)
    found = list(migrate.both(tools, world.driver, HELD, []))
    assert [one.state for one in found] == [doctor.FAIL]
    assert f"csi-fleet serves {world.driver}" in found[0].text


RUNS = {
    Command.STATUS: (status_command.run, (), {}),
    Command.EXPLAIN: (explain.run, ("pvc", CLAIM), {}),
    Command.RETRY: (retry.run, ("pvc", CLAIM), {}),
    Command.FAILED: (failed.run, (), {}),
    Command.PAUSE: (pause.run, (), {"driver": DRIVERS[0]}),
    Command.RESUME: (pause.run, (), {"driver": DRIVERS[0]}),
    Command.DRAIN: (pause.run, (), {"driver": DRIVERS[0]}),
    Command.DRY_RUN: (dry_run.run, ("pvc", CLAIM), {}),
    Command.SHADOW: (shadow.run, ("report",), {}),
    Command.DOCTOR: (lambda tools: list(doctor._redis(tools.of(DRIVERS[0]))), (), {}),
    Command.MIGRATE: (lambda tools: list(migrate.both(tools, DRIVERS[0], HELD, [])), (), {}),
    Command.AUDIT: (lambda tools: audit.read_life(tools.of(DRIVERS[0]).redis), (), {}),
}


@pytest.mark.parametrize("given", [slice(None, None, -1), slice(1), slice(1, 2)], ids=str)
@pytest.mark.parametrize("command", sorted(TOOLS - APART))
def test_urls_in_another_order_or_some_are_told_and_nothing_is_written(make_world, command, given):
    """A drain that looks into another shard's Redis would say that nothing runs."""
    world = make_world(2)
    before = [{name: one.dump(name) for name in one.scan_iter("*")} for one in world.clients]
    run, arguments, tool = RUNS[command]
    with pytest.raises(WrongShard, match=r"of shard [01]/2.* in the same order") as caught:
        run(world.tools(command, *arguments, urls=world.urls[given], **tool))
    assert isinstance(caught.value, ConfigError)
    after = [{name: one.dump(name) for name in one.scan_iter("*")} for one in world.clients]
    assert after == before


def test_audit_begins_no_life_of_a_redis(make_world):
    """Its mark would keep the right processes out of one that was just emptied."""
    world = make_world(2)
    for client in world.clients:
        client.flushdb()
    told = audit.read_life(world.tools(Command.AUDIT, urls=world.urls[::-1]).shards[0].redis)
    assert [client.dbsize() for client in world.clients] == [0, 0]
    CatalogWriter(world.clients[1]).epoch()
    tools = world.tools(Command.AUDIT).of(DRIVERS[1])
    assert audit.read_life(tools.redis) == audit.read_life(tools.redis) != told


@pytest.mark.parametrize("command", [Command.PAUSE, Command.RESUME])
def test_a_class_is_paused_in_all_shards_or_in_none(make_world, monkeypatch, command):
    """Two names of one Redis: the second shard's is found wrong before the first one is written."""
    world = make_world(2)
    monkeypatch.setattr(pause.time, "sleep", lambda _: None)
    if command is Command.RESUME:
        pause.run(world.tools(Command.PAUSE, storage_class="one", reason="why"))
    before = world.clients[0].dump("csifleet:class_pauses")
    urls = [world.urls[0], world.urls[0].replace("127.0.0.1", "localhost")]
    with pytest.raises(WrongShard):
        pause.run(world.tools(command, storage_class="one", reason="other", urls=urls))
    assert world.clients[0].dump("csifleet:class_pauses") == before


def test_doctor_names_the_shard_that_is_away_and_looks_at_the_others(make_world):
    world = make_world(2)
    away = f"redis://127.0.0.1:{free_port()}/0"
    tools = world.tools(Command.DOCTOR, urls=[away, world.urls[1]])
    found = [*doctor.redis_settings(tools), *doctor.system(tools)]
    assert [one.check for one in found if one.state == doctor.FAIL] == [
        "redis of shard 0/2",
        "system of shard 0/2",
    ]
    assert {"redis version of shard 1/2", "watchers of shard 1/2"} <= {one.check for one in found}


def test_what_is_in_a_redis_is_never_asked_of_all_shards_at_once(make_world):
    """A command that forgot to choose is a defect, not a look into the first shard."""
    tools = make_world(2).tools(Command.STATUS)
    with pytest.raises(ValueError, match="which shard"):
        _ = tools.redis
    assert [str(one.settings.shard) for one in tools.shards] == ["0/2", "1/2"]
    assert tools.of(DRIVERS[1]) is tools.shards[1]
    assert tools.shards[1].of(DRIVERS[0]) is tools.shards[0]
    assert tools.of("") is tools.shards[0]
    assert tools.shards[1].kube is tools.kube
