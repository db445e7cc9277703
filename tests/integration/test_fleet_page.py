"""The page `/fleet` shows `status`, `pending` and `explain`, read with Flower's permissions."""

from __future__ import annotations

import math
import re
from html import unescape

import pytest

from tests.support.secure_redis import SecureRedis
from tests.support.waiting_world import DRIVERS, World
from workers.cli import fleetpage, fleetweb, pause, status
from workers.cli.status import driver_lines
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import ConfigError, QueueUnavailable
from workers.kube.errors import ForbiddenError
from workers.queue import inspect
from workers.queue.connection import connect
from workers.queue.keys import Key
from workers.queue.registry import DriverRegistry

MANY = 2000


@pytest.fixture
def world(redis_client, redis_server):
    return World(redis_client, redis_server.url)


@pytest.fixture
def fleet(world):
    return fleet_of(world)


def fleet_of(world):
    """Return the page's data source with the world's fake API server instead of a cluster."""
    made = fleetweb.Fleet(parse(Command.FLOWER, [f"--redis-url={world.url}"], {}))
    made.tools.__dict__["kube"] = world.api.kube
    made.has_account = True
    return made


def words(page):
    """Return the text of a page without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_it_says_what_status_and_pending_say(world, fleet, capsys):
    held = world.tools(Command.PAUSE, driver=DRIVERS[1], reason="array upgrade")
    assert pause.run(held) == 0
    capsys.readouterr()
    for number in range(7):
        world.queue.add([world.claim(f"held-{number}", "class1")])
    world.fail(world.claim("broken", "class2"), "rpc error: code = Internal desc = on fire")
    world.claim("nowhere", "missing9")
    groups = world.groups(capsys)
    shot = fleet.snapshot()
    page = words(fleetpage.overview("", shot))
    assert len(groups) == 3
    assert f"Waiting: {sum(one['count'] for one in groups)}, for 3 causes" in page
    for one in groups:
        assert f"{one['count']} x {one['cause']}" in page
        assert re.sub(r"[\d.]+ s ago", "", one["text"])[:20] in page
        assert one["move"] in page
        assert one["command"] in page
    for line in driver_lines(status.gather(world.tools(Command.STATUS))):
        assert line.name in page
        assert f"{line.state}" in page
        assert f"{line.ready} {line.running} {line.failing}" in page
    assert "array upgrade" in page


def test_each_object_leads_to_cause_remedy_and_history(world, fleet):
    error = "rpc error: code = Internal desc = on fire"
    world.fail(world.claim("broken", "class2"), error)
    page = fleetpage.overview("/base", fleet.snapshot())
    links = set(re.findall(r'href="/base/fleet/([a-z]+)/([^"]+)"', page))
    assert ("pvc", "shop/broken") in links
    assert ("driver", DRIVERS[2]) in links
    for word, name in links:
        code, text = fleet.explain("/base", word, name)
        assert code == 200, (word, name)
    code, text = fleet.explain("/base", "pvc", "shop/broken")
    shown = words(text)
    assert "driver-error" in shown
    assert "Remedy: The driver itself failed: check the driver's log" in shown
    assert "Whose move: the driver's operator." in shown
    assert "What happened" in shown
    assert f"error: {error}" in shown


def test_what_is_gone_and_what_never_was(world, fleet):
    world.fail(Key("claims", DRIVERS[0], "shop/gone", "uid"), "no secret")
    code, page = fleet.explain("", "pvc", "shop/gone")
    assert (code, "deleted-failing" in page) == (200, True)
    code, page = fleet.explain("", "pvc", "shop/never")
    assert (code, "not-found" in page) == (404, True)
    for word, name in (("pod", "shop/a"), ("pvc", "alone"), ("driver", "nobody.example.org")):
        with pytest.raises(ConfigError):
            fleet.explain("", word, name)


def test_all_members_of_a_group_are_a_click_away(world, fleet):
    for number in range(30):
        world.claim(f"c{number}", "missing9")
    world.claim("other", "class0")
    shot = fleet.snapshot()
    page = fleetpage.overview("", shot)
    query = unescape(re.search(r'href="/fleet/pending\?([^"]+)"', page).group(1))
    assert query == "cause=class-missing&about=class+missing9"
    only = {"cause": "class-missing", "about": "class missing9"}
    assert fleetpage.waiting("", shot, only).count("/fleet/pvc/") == 30
    assert fleetpage.waiting("", shot, {}).count("/fleet/pvc/") == 31


def test_nothing_of_the_cluster_is_markup(world, fleet):
    evil = '<script>alert(1)</script>\x1b[31m"\u202e'
    key = world.claim("evil", "class0")
    world.fail(key, evil)
    pages = [fleetpage.overview("", fleet.snapshot()), fleet.explain("", "pvc", "shop/evil")[1]]
    for page in pages:
        assert "alert(1)" in page
        assert "<script" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page


def test_many_viewers_of_2000_claims_are_shown_one_reading(world, monkeypatch):
    registry = DriverRegistry(world.client)
    for number in range(20):
        name = f"d{number}.csi.example.org"
        record = {"name": name, "queue_name": name, "controllers": ["provisioner", "attacher"]}
        registry.register(name, record, ttl_seconds=60)
        world.queue.set_limits(Key("claims", name, "", "").lane, 4)
    world.queue.add([world.claim(f"c{number}", f"class{number % 3}") for number in range(MANY)])
    fleet = fleet_of(world)
    asked, read_keys = [], inspect.read_keys
    monkeypatch.setattr(
        inspect, "read_keys", lambda *args: asked.extend(args[1]) or read_keys(*args)
    )
    readings = []
    read = fleet._read
    monkeypatch.setattr(fleet, "_read", lambda: readings.append(1) or read())
    page = fleetpage.overview("", fleet.snapshot())
    assert "20 drivers" in page
    assert f"Waiting: {MANY}" in page
    # A claim has one key, for its volume, and no key of a controller without work for it.
    assert len(asked) == len(set(asked)) == MANY
    # Each view within `FRESH_SECONDS` shows the same reading.
    monkeypatch.setattr(fleet, "_fresh_until", math.inf)
    assert fleetpage.overview("", fleet.snapshot()) == page
    assert readings == [1]
    monkeypatch.setattr(fleet, "_fresh_until", 0.0)
    fleet.snapshot()
    assert readings == [1, 1]


def test_without_an_account_it_shows_what_redis_knows_and_says_so(world):
    made = fleetweb.Fleet(parse(Command.FLOWER, [f"--redis-url={world.url}"], {}))
    assert not made.has_account
    world.fail(world.claim("broken", "class2"), "on fire")
    page = words(fleetpage.overview("", made.snapshot()))
    assert fleetweb.NO_ACCOUNT in page
    assert "on fire" in page
    assert "failing 1 - 0 0 1" in page
    code, page = made.explain("", "pvc", "shop/broken")
    assert (code, "on fire" in page, "no account" in page) == (200, True, True)
    code, page = made.explain("", "driver", DRIVERS[2])
    assert (code, "on fire" in page, "no account" in page) == (200, True, True)
    with pytest.raises(ForbiddenError):
        made.explain("", "pvc", "shop/unknown")


def test_redis_away_is_a_note(world):
    made = fleetweb.Fleet(parse(Command.FLOWER, ["--redis-url=redis://127.0.0.1:1"], {}))
    made.tools.__dict__["kube"] = world.api.kube
    world.claim("data", "missing9")
    page = words(fleetpage.overview("", made.snapshot()))
    assert "Redis does not answer" in page
    assert "Waiting: not known" in page
    code, page = made.explain("", "pvc", "shop/data")
    assert (code, "class-missing" in page, "Redis does not answer" in page) == (200, True, True)
    with pytest.raises(QueueUnavailable):
        made.explain("", "driver", DRIVERS[0])


@pytest.fixture(scope="module")
def secure(redis_binary, tmp_path_factory):
    server = SecureRedis(redis_binary, tmp_path_factory.mktemp("redis"))
    yield server.start()
    server.stop()


def test_flowers_own_rights_are_enough_and_write_nothing(secure):
    """The page needs no more than Flower's permissions and writes nothing.

    As shipped, it uses Flower's password and the user viewer, and Redis logs no denial.
    """
    settings = parse(Command.WORKER, secure.login("worker"), {})
    client = connect(settings.redis.url_with_credentials())
    world = World(client, secure.url)
    world.queue.add([world.claim("waits", "class1")])
    world.fail(world.claim("broken", "class2"), "on fire")
    made = fleetweb.Fleet(parse(Command.FLOWER, secure.login("flower"), {}))
    made.tools.__dict__["kube"] = world.api.kube
    assert made.tools.settings.redis.username == "viewer"
    before = secure.denials()
    client.delete("csifleet:clock")  # no process has kept the time recently
    shot = made.snapshot()
    assert shot.report, shot.notes
    assert sum(len(group.members) for group in shot.groups) == 2
    assert "on fire" in fleetpage.overview("", shot)
    for word, name in (("pvc", "shop/broken"), ("pvc", "shop/none"), ("driver", DRIVERS[2])):
        made.explain("", word, name)
    assert secure.denials() == before
    with pytest.raises(QueueUnavailable, match="can't run this command"):
        made.tools.queue.add([Key("claims", DRIVERS[0], "shop/x", "u")])
