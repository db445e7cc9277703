"""Flower in a real browser: it requires a login, finds claims by name and changes nothing."""

from __future__ import annotations

import json
import os
import re
from html import unescape
from pathlib import Path

import pytest
import requests

from tests.support.browser import page_of, page_text, screenshot
from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.flower import LOGIN, Flower
from tests.support.tool import Tool
from tests.support.waiting import wait_until
from workers.app import TASK_TICK, TASK_WORK, make_app
from workers.config.load import parse

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def driver_of_file():
    with DirectoryDriver("fast.csi.example.org") as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, kubeconfig, driver_of_file, redis_binary):
    flags = ("--concurrency=2", "-v=4")
    with Fleet(tmp_path_factory.mktemp("fleet"), kubeconfig, [driver_of_file], *flags) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def server(fleet, kubeconfig, tmp_path_factory):
    with Flower(tmp_path_factory.mktemp("flower"), fleet.redis_url, kubeconfig) as server:
        yield server


@pytest.fixture(scope="module")
def flower(server):
    """Flower's address without the login. It reads the API server for the page /fleet."""
    return server.url


@pytest.fixture(scope="module")
def known_worker(server):
    """Wait until Flower receives events and the worker sends its task events."""
    server.wait_workers(1)


def signed_in(url: str, path: str) -> str:
    return f"http://{LOGIN[0]}:{LOGIN[1]}@{url}{path}"


def api(url: str, path: str):
    return requests.get(signed_in(url, path), timeout=20).json()


def tasks_of(url: str, scene) -> dict[str, list[dict]]:
    """Return Flower's tasks of the scene's claims, by name of the claim."""
    found: dict[str, list[dict]] = {}
    for task in api(url, f"/api/tasks?search=args:{scene.namespace}").values():
        place, _, name = (task["args"] or "").split(" ")[0].partition("/")
        if place == scene.namespace:
            found.setdefault(name, []).append(task)
    return found


def orders(url: str, scene, state: str) -> list[dict]:
    """Return Flower's tasks of the claim `orders` that were once `failed` or `retried`."""
    return [one for one in tasks_of(url, scene).get("orders", []) if one[state]]


@pytest.fixture
def claim(scene, driver_of_file, known_worker):
    """A claim that was provisioned while Flower received events."""
    name = "orders-db"
    scene.claim(name, scene.storage_class(driver_of_file.name))
    scene.wait_bound(name)
    return f"{scene.namespace}/{name}"


def test_login_is_required(flower):
    for path in ("/", "/tasks", "/api/tasks", "/workers"):
        assert requests.get(f"http://{flower}{path}", timeout=5).status_code == 401, path
        wrong = requests.get(f"http://{flower}{path}", auth=("viewer", "guess"), timeout=5)
        assert wrong.status_code == 401, path
    assert "claims.sync" not in page_text(f"http://{flower}/tasks")


def test_a_claims_task_is_found_by_its_name(flower, claim, driver_of_file):
    query = f"{signed_in(flower, '/api/tasks')}?search=args:orders-db"

    def found():
        tasks = requests.get(query, timeout=10).json().values()
        return [one for one in tasks if claim in (one["args"] or "")]

    task = wait_until(found, 20, "Flower has the claim's task")[0]
    assert task["name"] == "claims.sync"
    assert task["args"] == f"{claim} {driver_of_file.name}"
    text = wait_until(
        lambda: (page := page_text(signed_in(flower, "/tasks"))) and claim in page and page,
        60,
        "the page shows the claim",
    )
    assert "claims.sync" in text


def test_each_key_is_a_task_of_its_own(flower, fleet, scene, known_worker, driver_of_file):
    """This includes a key that a thread takes after another key, without a message of its own."""
    storage_class = scene.storage_class(driver_of_file.name)
    names = [f"many-{number}" for number in range(12)]
    for name in names:
        scene.claim(name, storage_class)
    for name in names:
        scene.wait_bound(name)
    claims = [f"{scene.namespace}/{name}" for name in names]

    def ended():
        url = f"{signed_in(flower, '/api/tasks')}?search=args:many-"
        tasks = requests.get(url, timeout=10).json().values()
        done = {one["args"].split()[0] for one in tasks if one["state"] == "SUCCESS"}
        return done >= set(claims)

    wait_until(ended, 20, "Flower has a successful task of each claim")
    assert_nothing_is_left(fleet.redis_url)


def test_a_failed_pass_is_a_failed_task_with_its_cause(flower, scene, driver_of_file, known_worker):
    """The task is FAILURE with the driver's message; SUCCESS comes only with the volume."""
    rule = {"method": "CreateVolume", "code": "INTERNAL", "message": "pool p1 is degraded"}
    driver_of_file.set_rules(rule)
    storage_class = scene.storage_class(driver_of_file.name)
    scene.claim("orders", storage_class)
    failed = wait_until(lambda: orders(flower, scene, "failed"), 30, "a failed task")
    assert {one["state"] for one in failed} == {"FAILURE"}
    assert "code = Internal desc = pool p1 is degraded" in failed[0]["exception"]
    text = wait_until(
        lambda: (
            (page := page_text(signed_in(flower, "/tasks?state=FAILURE")))
            and "pool p1 is degraded" in page
            and page
        ),
        60,
        "the page shows the failure",
    )
    assert "FAILURE" in text
    assert "SUCCESS" not in {one["state"] for one in tasks_of(flower, scene)["orders"]}
    driver_of_file.set_rules()
    scene.wait_bound("orders")
    wait_until(
        lambda: "SUCCESS" in {one["state"] for one in tasks_of(flower, scene)["orders"]},
        30,
        "a successful task",
    )


def test_a_pass_that_waits_is_a_retried_task(flower, scene, driver_of_file, known_worker):
    """The driver disappears during the call: the task neither failed nor succeeded."""
    driver_of_file.set_rules({"method": "CreateVolume", "hang": True, "times": 1})
    scene.claim("orders", scene.storage_class(driver_of_file.name))
    wait_until(lambda: driver_of_file.calls("CreateVolume"), 30, "CreateVolume has begun")
    driver_of_file.kill()
    try:
        retried = wait_until(lambda: orders(flower, scene, "retried"), 30, "a retried task")
        assert {one["state"] for one in retried} == {"RETRY"}
        assert "driver" in retried[0]["exception"]
        assert "SUCCESS" not in {one["state"] for one in tasks_of(flower, scene)["orders"]}
    finally:
        driver_of_file.start()
    scene.wait_bound("orders")


def test_neither_ticks_nor_wake_ups_are_tasks(flower, scene, driver_of_file, known_worker):
    scene.claim("orders", scene.storage_class(driver_of_file.name))
    scene.wait_bound("orders")
    wait_until(lambda: "orders" in tasks_of(flower, scene), 30, "Flower has its task")
    names = {one["name"] for one in api(flower, "/api/tasks").values()}
    assert "claims.sync" in names
    assert names.isdisjoint({TASK_TICK, TASK_WORK})


def test_the_broker_page_has_the_lengths_of_the_drivers_queues(
    flower, scene, fleet, driver_of_file, kubeconfig
):
    """The lengths are those of `status`; Celery's own list would hold one message."""
    tool = Tool(kubeconfig, fleet.redis_url)
    tool.ok("pause", f"--driver={driver_of_file.name}", "--reason=upgrade")
    queue = f"drv.{driver_of_file.name}"
    try:
        storage_class = scene.storage_class(driver_of_file.name)
        for number in range(7):
            scene.claim(f"held-{number}", storage_class)
        lengths = wait_until(
            lambda: (
                (
                    found := {
                        one["name"]: one
                        for one in api(flower, "/api/queues/length")["active_queues"]
                    }
                )
                and found.get(queue, {}).get("messages_ready") == 7
                and found
            ),
            30,
            "the queue of the driver holds seven claims",
        )
        assert lengths[queue]["messages_unacknowledged"] == 0
        page = page_text(signed_in(flower, "/broker"))
        row = re.search(rf'<tr id="{re.escape(queue)}">(.*?)</tr>', page, re.DOTALL).group(1)
        assert re.findall(r">(\d+)<", row) == ["7", "0", "7"]
        assert requests.get(f"http://{flower}/broker", timeout=5).status_code == 401
        assert requests.get(f"http://{flower}/api/queues/length", timeout=5).status_code == 401
    finally:
        tool.ok("resume", f"--driver={driver_of_file.name}")


def assert_nothing_is_left(redis_url: str) -> None:
    """Wait until no worker holds a task.

    Celery fetches as many messages as it has threads, so each message that is never acknowledged
    costs a thread.
    """
    app = make_app(parse("worker", [f"--redis-url={redis_url}"], {}))
    inspect = app.control.inspect(timeout=10)

    def is_free():
        found = [inspect.active(), inspect.reserved()]
        return all(found) and not any(rows for one in found for rows in one.values())

    try:
        wait_until(is_free, 60, "no task is held")
    finally:
        app.close()


@pytest.mark.parametrize(
    "path",
    [
        "/api/worker/shutdown/any",
        "/api/worker/pool/restart/any",
        "/api/task/revoke/00000000-0000-0000-0000-000000000000",
        "/api/task/async-apply/claims.sync",
        "/api/task/send-task/claims.sync",
    ],
)
def test_nothing_can_be_changed(flower, path):
    answer = requests.post(signed_in(flower, path), json={"args": ["x"]}, timeout=20)
    assert answer.status_code in {401, 403, 404, 405}, answer.text


@pytest.fixture
def sick(scene, driver_of_file, known_worker):
    """Claims that wait for two different causes."""
    rule = {"method": "CreateVolume", "code": "INTERNAL", "message": "pool p1 is degraded"}
    driver_of_file.set_rules(rule)
    storage_class = scene.storage_class(driver_of_file.name)
    for number in range(3):
        scene.claim(f"orders-{number}", storage_class)
    scene.claim("lost", f"{storage_class}-of-nobody")
    yield f"{scene.namespace}/orders-0"
    driver_of_file.set_rules()


def test_the_page_fleet_needs_the_login(flower):
    paths = (
        "/fleet",
        "/fleet/pending",
        "/fleet/pvc/a/b",
        "/fleet/find?object=a",
        "/fleet/style.css",
    )
    for path in paths:
        assert requests.get(f"http://{flower}{path}", timeout=5).status_code == 401, path
        assert requests.post(signed_in(flower, path), timeout=5).status_code in {403, 405}, path


def test_the_page_fleet_shows_drivers_what_waits_and_why(
    flower, fleet, sick, kubeconfig, driver_of_file, tmp_path
):
    """The page shows what the commands print, and each of its links leads to a page.

    With UPDATE_IMAGES=1 the test writes pictures for the docs.
    """
    page = wait_until(
        lambda: (text := page_text(signed_in(flower, "/fleet"))) and "3 x " in text and text,
        60,
        "the page shows three failing claims",
    )
    assert driver_of_file.name in page
    assert "pool p1 is degraded" in page
    assert "class-missing" in page
    tool = Tool(kubeconfig, fleet.redis_url)
    causes = {one["cause"] for one in tool.json("pending")["groups"]}
    assert {"driver-error", "class-missing"} <= causes
    for cause in causes:
        assert f"<code>{cause}</code>" in page
    for path in set(re.findall(r'href="(/fleet/[^"]+)"', page)):
        answer = requests.get(signed_in(flower, unescape(path)), timeout=20)
        is_there = answer.status_code == 200
        # A class or a driver that does not exist has a page that says so.
        says_so = "class-missing" in answer.text or 'role="alert"' in answer.text
        assert is_there or (answer.status_code == 404 and says_so), path
        policy = answer.headers.get("Content-Security-Policy", "")
        assert "default-src 'none'" in policy or path.endswith("style.css")
    found = requests.get(signed_in(flower, f"/fleet/find?object=pvc+{sick}"), timeout=20)
    assert found.url.endswith(f"/fleet/pvc/{sick}")
    claim = page_text(signed_in(flower, f"/fleet/pvc/{sick}"))
    assert "Remedy:" in claim
    assert "What happened" in claim
    assert "pool p1 is degraded" in claim
    folder = IMAGES if os.environ.get("UPDATE_IMAGES") == "1" else tmp_path
    folder.mkdir(exist_ok=True)
    sizes = {"fleet-claim": (1100, 760), "fleet-narrow": (390, 800)}
    for name, size in sizes.items():
        path = f"/fleet/pvc/{sick}" if name == "fleet-claim" else "/fleet"
        screenshot(signed_in(flower, path), folder / f"{name}.png", size=size)
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_fleet_by_keyboard_and_on_a_narrow_screen(flower, sick):
    """The page uses only links, a field and a button in reading order, and fits a phone's width."""
    page = page_text(signed_in(flower, "/fleet"))
    assert "<script" not in page
    assert not re.findall(r'tabindex="[1-9]|onclick|<div role="button"', page)
    first = re.search(r"<(a|button|input|select)\b[^>]*>", page)
    assert 'href="#main"' in first.group()
    assert '<label for="object">' in page
    frame = (
        "<iframe id=f width=360 height=900></iframe><script>"
        "onload=()=>{let f=document.getElementById('f');f.srcdoc=PAGE;"
        "f.onload=()=>{document.title='wide:'+f.contentDocument.documentElement.scrollWidth}}"
        "</script>"
    )
    style = requests.get(signed_in(flower, "/fleet/style.css"), timeout=10).text
    whole = re.sub(r"<link[^>]*style.css[^>]*>", f"<style>{style}</style>", page)
    html = frame.replace("PAGE", json.dumps(whole).replace("</", "<\\/"))
    shown = page_of(html)
    width = int(re.search(r"wide:(\d+)", shown).group(1))
    assert width <= 360
