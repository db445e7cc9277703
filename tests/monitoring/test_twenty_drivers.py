"""Twenty drivers, three of them sick, 500 waiting claims: everything that an operator reads agrees.

`status`, `pending`, `explain`, the page /fleet, Flower, the board and the alerts are compared with
each other and with the truth: the claims in the API server and the drivers' own counts. With
SCENE_FOLDER=/folder the test keeps all of it there, as text and as pictures; UPDATE_IMAGES=1 writes
pictures for the docs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
import yaml

from tests.support.browser import page_text, screenshot
from tests.support.controlplane import ControlPlane
from tests.support.monitored import WATCHERS, WORKERS
from tests.support.prometheus import DIVISOR, shortened
from tests.support.twenty_drivers import (
    BOUND_EACH,
    DOWN,
    FULL,
    ROLES,
    SICK,
    STUCK,
    WAITING,
    TwentyDrivers,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
DOCS = Path(__file__).resolve().parents[2] / "docs"
RULES = yaml.safe_load((DOCS / "alerts" / "csi-fleet.yaml").read_text())
PANELS = json.loads((DOCS / "dashboards" / "csi-fleet.json").read_text())["panels"]
COUNTS = ("ready", "retry", "running", "delayed")
ALL = sum(WAITING.values())
# What may be said of a claim of each driver; the first cause is the one to find.
CAUSES = {
    DOWN: {"driver-lost"},
    FULL: {"storage-full", "running"},
    STUCK: {"driver-error", "driver-slow", "running"},
}
PICTURES = {
    "flower-tasks": ("/tasks", (1360, 560)),
    "flower-failed": ("/tasks?state=FAILURE", (1360, 900)),
    "flower-broker": ("/broker", (1360, 1300)),
    "flower-workers": ("/", (1360, 560)),
    "fleet": ("/fleet", (1100, 1900)),
}
IN_DOCS = ("flower-tasks", "flower-workers", "fleet")


class Shortened(TwentyDrivers):
    """As the rules, the longest time between two attempts is divided by twenty."""

    pace = (f"--retry-interval-max={300 // DIVISOR}s",)


@pytest.fixture(scope="module")
def world(tmp_path_factory, redis_binary):
    directory = tmp_path_factory.mktemp("twenty")
    with (
        ControlPlane(directory / "plane", audit_log=True) as plane,
        Shortened(directory / "world", plane, redis_binary, shortened(RULES)) as world,
    ):
        world.fall_sick()
        yield world


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = Path(os.environ.get("SCENE_FOLDER") or tmp_path_factory.mktemp("shown"))
    found.mkdir(parents=True, exist_ok=True)
    return found


@pytest.fixture(scope="module")
def truth(world):
    """The number of waiting claims by driver, from the API server."""
    waiting = world.claims_by_driver("Pending")
    assert waiting == {world.driver(role): count for role, count in WAITING.items()}
    bound = world.claims_by_driver("Bound")
    made = {name: figures["volumes"] for name, figures in world.host.figures().items()}
    assert bound == made == {world.driver(role): BOUND_EACH for role in ROLES}
    return waiting


def rows_of(page):
    """Return the rows of the page's first table: name of the column -> text."""
    return [
        {
            head: unescape(re.sub(r"<[^>]*>", " ", cell)).strip()
            for head, cell in re.findall(r'<td data-name="(\w+)"[^>]*>(.*?)</td>', row)
        }
        for row in re.findall(r"<tr>(.*?)</tr>", page.partition("</table>")[0])
        if "data-name" in row
    ]


def test_status_has_the_sick_first_and_counts_every_claim_once(world, truth, folder):
    report = world.tool.json("status")
    keys = {
        name: sum(lane[one] for lane in driver["work"].values() for one in COUNTS)
        for name, driver in report["drivers"].items()
    }
    assert len(keys) == len(ROLES)
    assert {name: count for name, count in keys.items() if count} == truth
    failing = {name: one["failing"] for name, one in report["drivers"].items() if one["failing"]}
    assert failing == {world.driver(role): WAITING[role] for role in (FULL, STUCK)}
    assert report["counts"]["failing_keys"] == WAITING[FULL] + WAITING[STUCK]
    assert report["problems"] == [f"driver {world.driver(DOWN)}: disconnected: driver socket lost"]
    assert (len(report["watchers"]), len(report["workers"])) == (len(WATCHERS), len(WORKERS))
    assert report["beat"]
    short = world.tool.run("status").stdout
    (folder / "status.txt").write_text(short)
    (folder / "status-wide.txt").write_text(world.tool.run("status", "--wide").stdout)
    states = [line.split()[:2] for line in short.splitlines() if line.startswith("array")]
    assert states[0] == [world.driver(DOWN), "disconnected"]
    assert {tuple(one) for one in states[1:3]} == {
        (world.driver(role), "failing") for role in (FULL, STUCK)
    }
    assert {state for _, state in states[3:]} == {"ok"}
    assert max(map(len, short.splitlines())) <= 80
    assert "csi-fleet pending" in short


def test_status_counts_the_calls_that_the_driver_counts(world):
    """The calls of the driver that hangs end together, so the two counts are equal in between."""
    name = world.driver(STUCK)

    def do_agree():
        calls = world.host.figures()[name]["now"]
        (work,) = world.tool.json("status", f"--driver={name}")["drivers"].values()
        running = work["work"]["claims"]["running"]
        assert running == calls > 0, (running, calls)
        return True

    wait_until(do_agree, 60, "status and the driver count the same calls")


def test_pending_groups_every_claim_by_its_cause(world, truth, folder):
    report = world.tool.json("pending")
    (folder / "pending.txt").write_text(world.tool.ok("pending"))
    assert report["waiting"] == ALL
    counts, causes = Counter(), {}
    for group in report["groups"]:
        counts[group["driver"]] += group["count"]
        causes.setdefault(world.role(group["driver"]), set()).add(group["cause"])
    assert counts == truth
    for role in SICK:
        assert causes[role] <= CAUSES[role]
        assert causes[role] - {"running"}


def test_explain_driver_names_the_cause_of_each(world, folder):
    texts = {}
    for role in SICK:
        name = world.driver(role)
        found = world.tool.json("explain", "driver", name)
        texts[role] = world.tool.ok("explain", "driver", name)
        (folder / f"explain-driver-{role}.txt").write_text(texts[role])
        assert found["cause"] in CAUSES[role] - {"running"}, texts[role]
        assert found["pending"]["waiting"] == WAITING[role]
    assert "driver socket lost" in texts[DOWN]
    assert "ResourceExhausted" in texts[FULL]
    assert "DeadlineExceeded" in texts[STUCK]
    healthy = world.tool.json("explain", "driver", world.driver(ROLES[0]))
    assert healthy["cause"] == "nothing-to-do"


def test_the_page_fleet_says_what_status_and_pending_say(world, truth):
    page = page_text(world.flower.signed_in("/fleet"))
    assert f"Waiting: {ALL}, for " in page
    rows = rows_of(page)
    assert [row["Driver"] for row in rows[:1]] == [world.driver(DOWN)]
    assert {row["Driver"]: int(row["Waiting"]) for row in rows if row["Waiting"] != "0"} == truth
    failing = {world.role(row["Driver"]): int(row["Failing"]) for row in rows}
    assert {role: count for role, count in failing.items() if count} == {
        role: WAITING[role] for role in (FULL, STUCK)
    }
    states = Counter(row["State"].split()[0] for row in rows)
    assert states == {"disconnected": 1, "failing": 2, "ok": len(ROLES) - 3}
    assert all(row["Oldest"] != "-" for row in rows[:3])
    assert all(row["Oldest"] == "-" for row in rows[3:])
    for role in SICK:
        assert any(f"<code>{cause}</code>" in page for cause in CAUSES[role] - {"running"})
        answer = world.flower.page(f"/fleet/driver/{world.driver(role)}")
        assert "Remedy:" in answer


def test_flowers_queues_hold_every_claim_once(world, truth):
    queues = world.flower.api("/api/queues/length")["active_queues"]
    lengths = {one["name"].removeprefix("drv."): one["messages"] for one in queues}
    assert {name: count for name, count in lengths.items() if count} == truth
    assert {name.partition("#")[0] for name in lengths} == {world.driver(role) for role in ROLES}


def test_flowers_tasks_succeed_only_for_bound_claims_and_fail_with_the_cause(world):
    tasks = world.flower.api(f"/api/tasks?search=args:{world.scene.namespace}").values()
    succeeded, errors = set(), {role: set() for role in ROLES}
    for task in tasks:
        claim, _, driver = task["args"].partition(" ")
        if task["state"] == "SUCCESS":
            succeeded.add(claim.partition("/")[2])
        if task["state"] == "FAILURE":
            errors[world.role(driver)].add(task["exception"])
    claims = world.scene.claims().items()
    bound = {name for name, one in claims if one["status"]["phase"] == "Bound"}
    assert succeeded == bound
    assert {role for role, found in errors.items() if found} == {FULL, STUCK}
    assert all("ResourceExhausted" in one for one in errors[FULL])
    assert all("DeadlineExceeded" in one for one in errors[STUCK])


def test_the_board_shows_what_is_true(world, truth, folder):
    world.wait_scraped()
    report = world.tool.json("status")
    shown = {}
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"].replace("$driver", ".*").replace("${kind:raw}", ".*")
            shown.setdefault(panel["title"], []).append(world.prometheus.query(query))
    (folder / "board.txt").write_text(
        "".join(
            f"{title}: {dict(labels) or ''} {value:g}\n"
            for title, answers in shown.items()
            for answer in answers
            for labels, value in sorted(answer.items(), key=lambda one: sorted(one[0]))
        )
    )

    def only(title, number=0):
        (value,) = shown[title][number].values()
        return value

    assert only("Failing") == report["counts"]["failing_keys"] == WAITING[FULL] + WAITING[STUCK]
    assert only("Given up") == only("Unsaved volumes") == 0
    assert only("Drivers connected") == len(ROLES) - 1
    assert only("Watchers") == len(WATCHERS)
    processes = "Processes, open attempts, unsaved"
    assert only(processes) == len(WORKERS)
    assert only(processes, 1) == len(ROLES)
    assert only(processes, 2) == report["counts"]["intents"]
    # A key that changes its state between the scrapes of two processes counts twice, or not at all.
    assert sum(shown["Keys by state"][0].values()) == pytest.approx(sum(truth.values()), abs=25)
    paused = {dict(labels)["driver_name"] for labels, on in shown["Pauses"][0].items() if on}
    assert paused == {world.driver(DOWN)}


def test_the_alerts_name_the_three_and_nobody_else(world, folder):
    wanted = {
        ("CsiFleetDriverDisconnected", DOWN),
        ("CsiFleetDriverWithoutWorker", DOWN),
        ("CsiFleetProvisioningFails", FULL),
        ("CsiFleetProvisioningFails", STUCK),
    }

    def firing():
        return {(alert, world.role(about)) for alert, about in world.prometheus.firing()}

    found = wait_until(lambda: (now := firing()) >= wanted and now, 120, "the alerts fire")
    (folder / "alerts.txt").write_text("".join(f"{a} {who}\n" for a, who in sorted(found)))
    assert {role for _, role in found} <= {*SICK, ""}


def test_pictures(world, folder):
    for name, (path, size) in PICTURES.items():
        picture = folder / f"{name}.png"
        screenshot(world.flower.signed_in(path), picture, size=size)
        assert picture.read_bytes().startswith(b"\x89PNG")
    if os.environ.get("UPDATE_IMAGES") == "1":
        for name in IN_DOCS:
            shutil.copy(folder / f"{name}.png", DOCS / "images")
