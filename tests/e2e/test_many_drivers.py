"""Twenty drivers in one installation: four fail, sixteen are unaffected (issue 8)."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.support.driver_host import DriverHost
from tests.support.fleet import Fleet, Scene
from tests.support.tool import Tool
from tests.support.waiting import wait_until

DRIVERS = 20
FLOOD = 120
FLOOD_LIMIT = 4
RATE = 10


def entry(host, name, *lines):
    return "\n    ".join([f"  - name: {name}", f"endpoint: {host.address(name)}", *lines]) + "\n"


@pytest.fixture
def host(tmp_path):
    run = uuid.uuid4().hex[:6]
    # A socket's path has at most 107 bytes, which pytest's folders may exceed.
    with DriverHost(tmp_path.parent / run, [f"{run}-{n}.example.org" for n in range(20)]) as host:
        yield host


@pytest.fixture
def file(tmp_path):
    return tmp_path / "drivers.yaml"


@pytest.fixture
def central(tmp_path, kubeconfig, file, redis_binary):
    """Return a function that starts the program with the drivers file."""

    def start(*flags):
        flags = (f"--drivers-file={file}", "--workers=1", "-v=4", *flags)
        return Fleet(tmp_path / "f", kubeconfig, [], *flags)

    return start


def create(scene, drivers, count):
    """Create `count` claims for each driver with several clients; return the names by driver."""
    names = {driver: [f"{driver}-{i}" for i in range(count)] for driver in drivers}
    classes = {driver: scene.storage_class(driver) for driver in drivers}
    with ThreadPoolExecutor(8) as pool:
        for future in [
            pool.submit(scene.claim, name, classes[driver])
            for driver, own in names.items()
            for name in own
        ]:
            future.result()
    return names


def test_four_bad_drivers_do_not_hold_up_sixteen_good_ones(host, central, scene, file):
    hang, full, crash, flood, *good = host.names
    file.write_text(
        "defaults:\n  timeouts: {create: 3s, delete: 3s}\ndrivers:\n"
        + "".join(entry(host, name) for name in (hang, full, crash, *good))
        + entry(host, flood, f"limits: {{create: {{concurrency: {FLOOD_LIMIT}}}}}")
    )
    host.set_mode(hang, mode="hang")
    host.set_mode(full, mode="exhausted")
    host.set_mode(flood, delay=0.1)
    over = threading.Event()

    def crash_on_and_on():
        is_gone = False
        while not over.wait(2):
            is_gone = not is_gone
            host.set_mode(crash, mode="gone" if is_gone else "ok")

    crashing = threading.Thread(target=crash_on_and_on)
    crashing.start()
    try:
        with central("--workers=2", "--retry-interval-max=3s") as fleet:
            bad = create(scene, [hang, full, crash], 10)
            flooded = create(scene, [flood], FLOOD)
            names = create(scene, good, 3)
            scene.wait_bound(*(name for own in names.values() for name in own), timeout_seconds=90)
            # The drivers are repaired: every claim becomes Bound.
            over.set()
            crashing.join()
            for name in (hang, full, crash):
                host.set_mode(name)
            everyone = [name for own in (bad | flooded).values() for name in own]
            scene.wait_bound(*everyone, timeout_seconds=120)
            figures = host.figures()
            assert figures[flood]["most_creates"] <= FLOOD_LIMIT
            assert all(figures[name]["volumes"] == 3 for name in good)
            # A lost socket is not a failure of the claim, so no event reports it (S-020).
            for name in bad[crash]:
                texts = [e["message"] for e in scene.events(name) if e["type"] == "Warning"]
                assert not [text for text in texts if "Unavailable" in text], texts
            assert "Traceback" not in fleet.log_text()
    finally:
        over.set()
        crashing.join()


def test_drivers_come_and_go_with_the_file(host, central, scene, file):
    """Drivers are added and removed without a restart.

    An invalid file keeps the last good set, and a driver that is down delays no other.
    """
    first, second, down = host.names[:3]
    host.set_mode(down, mode="gone")
    file.write_text("drivers:\n" + entry(host, first) + entry(host, down))
    with central("--workers=1") as fleet:
        create(scene, [first], 1)
        scene.wait_bound(f"{first}-0")
        waiting = [*create(scene, [second], 1)[second], *create(scene, [down], 1)[down]]
        file.write_text("drivers:\n  - name: broken\n    endpiont: /x\n")
        wait_until(lambda: "line 3" in fleet.log_text(), 10, "the mistake is told")
        assert "did you mean 'endpoint'" in fleet.log_text()
        file.write_text("drivers:\n" + entry(host, second) + entry(host, down))
        scene.wait_bound(waiting[0])
        create_more = scene.claim("late", f"{scene.name}-{first}")
        host.set_mode(down)
        scene.wait_bound(waiting[1])
        assert scene.get("late")["status"]["phase"] == "Pending", create_more
        file.write_text("drivers:\n" + entry(host, first))
        scene.wait_bound("late")


def test_limits_hold_over_four_workers(host, central, scene, file):
    """Limits of concurrency and rate and the serial mode hold while a worker is killed."""
    serial, rated, parallel = host.names[:3]
    file.write_text(
        "drivers:\n"
        + entry(host, serial, "limits: {serial: true}")
        + entry(host, rated, f"limits: {{create: {{concurrency: 50, rate: {RATE}, burst: 1}}}}")
        + entry(host, parallel, "limits: {create: {concurrency: 3}, delete: {concurrency: 2}}")
    )
    for name in (serial, parallel):
        host.set_mode(name, delay=0.1)
    with central("--workers=4") as fleet:
        names = create(scene, [serial, rated, parallel], 30)
        scene.wait_bound(names[rated][0])
        for name in names[serial][:5]:
            scene.delete(name)
        victim = fleet.workers()[0]
        os.kill(victim, signal.SIGKILL)
        rest = [name for own in names.values() for name in own if name not in names[serial][:5]]
        scene.wait_bound(*rest, timeout_seconds=90)
        figures = host.figures()
        assert figures[serial]["most_calls"] == 1
        assert figures[parallel]["most_creates"] <= 3
        starts = sorted(figures[rated]["starts"])
        windows = [sum(1 for t in starts if s <= t < s + 1) for s in starts]
        assert max(windows) <= RATE + 1, windows  # one token, refilled within the second


def test_one_call_at_a_time_even_over_the_death_of_its_worker(host, central, scene, file):
    """The driver continues a call whose caller was killed, and no other call starts meanwhile."""
    name = host.names[0]
    file.write_text(
        "drivers:\n"
        + entry(host, name, "limits: {create: {concurrency: 1}}", "timeouts: {create: 8s}")
    )
    host.set_mode(name, mode="stubborn", seconds=7)
    with central("--workers=4") as fleet:
        names = create(scene, [name], 2)[name]
        wait_until(lambda: host.figures()[name]["creates"] == 1, 20, "a call runs")
        client = redis.Redis.from_url(fleet.redis_url)
        (lease,) = client.hgetall("csifleet:leases").values()
        os.kill(int(lease.decode().split()[1].split(":")[1]), signal.SIGKILL)
        client.close()
        wait_until(lambda: host.figures()[name]["creates"] == 2, 40, "the next call")
        host.set_mode(name)
        scene.wait_bound(*names, timeout_seconds=60)
        assert host.figures()[name]["most_creates"] == 1


def test_one_claim_does_not_wait_for_a_flood_of_another_namespace(host, central, scene, api, file):
    """While the claim waits, at most as many calls of the flood begin as ran already."""
    name = host.names[0]
    file.write_text(
        "drivers:\n" + entry(host, name, f"limits: {{create: {{concurrency: {FLOOD_LIMIT}}}}}")
    )
    host.set_mode(name, delay=0.5)
    other = Scene(api)
    try:
        with central("--workers=2") as fleet:
            create(scene, [name], FLOOD)
            wait_until(lambda: host.figures()[name]["creates"] >= FLOOD_LIMIT, 30, "the flood runs")
            claim = other.claim("single", other.storage_class(name))
            uid = claim["metadata"]["uid"]
            other.wait_bound("single", timeout_seconds=30)
            with redis.Redis.from_url(fleet.redis_url) as client:
                trail = f"csifleet:trail:claims|{other.namespace}/single|{uid}"
                (queued,) = client.lrange(trail, 0, 0)
            figures = host.figures()[name]
            place = figures["names"].index(f"pvc-{uid}")
            since = [t for t in figures["starts"][:place] if t > int(queued.split()[0]) / 1000]
            assert len(since) <= FLOOD_LIMIT, "not more than ran then"
            assert place < FLOOD, "the flood goes on behind it"
    finally:
        other.clean_up()


def test_pools_split_the_drivers(host, central, scene, file):
    """A worker of one pool never takes a key of a driver in another pool."""
    gold, other = host.names[:2]
    file.write_text("drivers:\n" + entry(host, gold, "pool: gold") + entry(host, other))
    with central("--workers=1", "--drivers-pool=gold"):
        names = create(scene, [gold, other], 2)
        scene.wait_bound(*names[gold])
        assert host.figures()[other]["creates"] == 0
        assert {scene.get(name)["status"]["phase"] for name in names[other]} == {"Pending"}


def test_a_paused_class_waits_and_a_driver_that_hangs_is_tried_again(
    host, central, scene, file, kubeconfig
):
    paused, hang = host.names[:2]
    file.write_text(
        "defaults:\n  timeouts: {create: 1s}\ndrivers:\n" + entry(host, paused) + entry(host, hang)
    )
    with central("--workers=1") as fleet:
        served = f'"Detected CSI driver" driver="{hang}"'
        wait_until(lambda: served in fleet.log_text(), 30, "the driver is served")
        host.set_mode(hang, mode="dead")
        client = redis.Redis.from_url(fleet.redis_url)
        tool = Tool(kubeconfig, fleet.redis_url)
        storage_class = scene.storage_class(paused)
        tool.ok("pause", f"--class={storage_class}", "--reason=array firmware")
        scene.claim("waits", storage_class)
        names = create(scene, [hang], 8)
        scene.wait_event(names[hang][0], "DeadlineExceeded")
        assert scene.reasons("waits") == set()
        tool.ok("resume", f"--class={storage_class}")
        scene.wait_bound("waits")
        host.set_mode(hang)
        scene.wait_bound(*names[hang], timeout_seconds=90)
        client.close()
