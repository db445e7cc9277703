"""Two shards as processes: two Redis servers, each with its watcher, worker and beat, two drivers.

A wipe of one heals by what heals without shards, and whoever comes to a Redis of another shard ends
with one line.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import pytest
import redis

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet, environment, program
from tests.support.processes import start_process
from tests.support.redis_server import RedisServer
from tests.support.tool import Tool
from tests.support.waiting import wait_until
from workers.config.shard import place
from workers.queue.registry import DriverRegistry

EPOCH = "csifleet:epoch"
END_SECONDS = 60


@pytest.fixture
def servers(redis_binary, tmp_path):
    """The Redis of shard 0 and that of shard 1."""
    with ExitStack() as stack:
        found = []
        for name in ("r0", "r1"):
            server = RedisServer(redis_binary, tmp_path / name)
            server.directory.mkdir()
            stack.callback(server.kill)
            found.append(server.start())
        yield found


@pytest.fixture
def two_drivers():
    """A driver of each shard."""
    names = [f"shard-{os.getpid()}-{number}.csi.example.org" for number in range(20)]
    chosen = [next(name for name in names if place(name, 2) == index) for index in (0, 1)]
    with DirectoryDriver(chosen[0]) as zero, DirectoryDriver(chosen[1]) as one:
        yield [zero, one]


@pytest.fixture
def drivers_file(two_drivers, tmp_path):
    """One file for the workers of all shards."""
    path = tmp_path / "drivers.yaml"
    lines = [f"- {{name: {one.name}, endpoint: {one.address}}}\n" for one in two_drivers]
    path.write_text("drivers:\n" + "".join(lines))
    return path


def urls(servers):
    return [f"--redis-url={one.url}" for one in servers]


def test_two_drivers_in_two_shards_and_a_wipe_of_one(
    kubeconfig, scene, servers, two_drivers, drivers_file, tmp_path
):
    """A claim each, the Redis of shard 0 loses all, and a claim each again: one volume each."""
    clients = [redis.Redis.from_url(one.url) for one in servers]
    classes = [scene.storage_class(one.name) for one in two_drivers]
    flags = (f"--drivers-file={drivers_file}", "--workers=1", *urls(servers))
    with ExitStack() as stack:
        for index in (0, 1):
            place_of = tmp_path / f"f{index}"
            stack.enter_context(Fleet(place_of, kubeconfig, [], *flags, f"--shard={index}/2"))
        for index, name in enumerate(classes):
            scene.claim(f"before-{index}", name)
        scene.wait_bound()
        for client, driver in zip(clients, two_drivers, strict=True):
            assert list(DriverRegistry(client).alive()) == [driver.name], "each its own"
        epoch = clients[0].get(EPOCH)
        clients[0].flushall()
        for index, name in enumerate(classes):
            scene.claim(f"after-{index}", name)
        scene.wait_bound()
        assert clients[0].get(EPOCH) != epoch
        assert [b"@%d/2:" % index in clients[index].get(EPOCH) for index in (0, 1)] == [True, True]
        for driver in two_drivers:
            assert [call.code for call in driver.calls("CreateVolume")] == ["OK", "OK"]
        tool = Tool(kubeconfig, servers[0].url)
        tool.flags.append(f"--redis-url={servers[1].url}")
        report = tool.json("status")
        assert {one.name for one in two_drivers} <= report["drivers"].keys()
        assert report["problems"] == []
        scene.clean_up()  # while somebody is there to delete the volumes
    for driver in two_drivers:
        assert [call.code for call in driver.calls("DeleteVolume")] == ["OK", "OK"]


def command_of(part):
    return [sys.executable, "-m", "watcher"] if part == "watcher" else [*program(), part]


def start(part, kubeconfig, drivers_file, tmp_path, *flags):
    extra = [] if part == "watcher" else [f"--drivers-file={drivers_file}"]
    extra += [f"--state-dir={tmp_path / part}"]
    (tmp_path / part).mkdir()
    command = [*command_of(part), f"--kubeconfig={kubeconfig}", *extra, *flags]
    return start_process(part, command, log=tmp_path / f"{part}.log", env=environment())


def marked(server, mark):
    """As if processes of that shard had been here, or come back first after a wipe."""
    client = redis.Redis.from_url(server.url)
    run = client.info("server")["run_id"]
    with client.pipeline(transaction=True) as pipe:
        pipe.flushall()
        pipe.set(EPOCH, f"abc{f'@{mark}' if mark else ''}:1:{run}")
        pipe.execute()
    return client


def ended(process):
    wait_until(lambda: not process.is_running(), END_SECONDS, "the process ends")
    return process.popen.returncode


@pytest.mark.parametrize("part", ["watcher", "worker", "run"])
@pytest.mark.parametrize(
    ("mark", "flags"),
    [
        pytest.param("1/2", "0/2", id="wrong order of the URLs"),
        pytest.param("0/3", "0/2", id="another number of shards"),
        pytest.param("", "0/2", id="a system without shards"),
        pytest.param("0/2", "", id="without the flag"),
    ],
)
def test_a_process_at_another_shard_s_redis_ends_with_one_line(
    kubeconfig, servers, drivers_file, tmp_path, part, mark, flags
):
    """Exit code 2, what is wrong and the remedy; nothing that anybody works by is written."""
    client = marked(servers[0], mark)
    before = {name: client.dump(name) for name in client.scan_iter("*")}
    given = [*urls(servers), f"--shard={flags}"] if flags else urls(servers)[:1]
    given += ["--workers=1"] if part == "run" else []
    process = start(part, kubeconfig, drivers_file, tmp_path, *given)
    assert ended(process) == 2
    told = [line for line in process.log_tail(100).splitlines() if "this Redis is of" in line]
    assert len(told) >= 1
    assert all("--redis-url" in line and "empty every Redis first" in line for line in told)
    if part != "run":
        assert len(told) == 1
    assert "Traceback" not in process.log_tail(100)
    after = {name: client.dump(name) for name in client.scan_iter("csifleet:*")}
    after.pop(b"csifleet:presence", None)  # that a watcher lives; for people, and for 15 s
    assert after == before


@pytest.mark.parametrize("part", ["watcher", "worker"])
def test_a_process_whose_redis_becomes_another_shard_s_ends(
    kubeconfig, servers, two_drivers, drivers_file, tmp_path, part
):
    """An address that leads elsewhere from now on: the process does not work there."""
    assert two_drivers
    process = start(part, kubeconfig, drivers_file, tmp_path, *urls(servers), "--shard=0/2")
    client = redis.Redis.from_url(servers[0].url)
    key = "csifleet:drivers" if part == "worker" else EPOCH
    wait_until(lambda: client.exists(key), 60, "it works")
    assert process.is_running()
    marked(servers[0], "1/2")
    assert ended(process) == 2
    assert process.log_tail(100).count("this Redis is of shard 1/2") == 1
    assert not client.exists("csifleet:procs"), "it was not registered there"


def test_a_worker_beside_a_driver_of_another_shard_says_where_it_belongs(
    kubeconfig, servers, two_drivers, tmp_path
):
    """A sidecar's own driver is all that it may serve: one line with the flag to give."""
    zero, one = two_drivers
    command = [*program(), "worker", f"--kubeconfig={kubeconfig}", f"--csi-address={one.address}"]
    command += [*urls(servers), "--shard=0/2"]
    process = start_process("worker", command, log=tmp_path / "log", env=environment())
    assert ended(process) == 2
    assert f"driver {one.name} belongs to shard 1/2" in process.log_tail(50)
    assert "give it --shard=1/2" in process.log_tail(50)
    assert redis.Redis.from_url(servers[0].url).dbsize() == 0
    assert zero.calls("CreateVolume") == []
