"""`csi-fleet support-bundle` contains the data to find a fault, and no credentials."""

from __future__ import annotations

import base64
import json
import time

import pytest
import yaml

from tests.support.waiting_world import DRIVERS, World
from workers.cli import pause, support_bundle
from workers.cli.support_bundle import HIDDEN, scrubbed
from workers.config.flags import Command
from workers.errors import ConfigError
from workers.kube import paths

PLANTED = "hunter2-Xy7"
RANDOM = base64.b64encode(bytes(range(7, 55))).decode()


@pytest.fixture
def world(redis_client, redis_server):
    return World(redis_client, redis_server.url)


def bundle(world, capsys, output=""):
    assert support_bundle.run(world.tools(Command.SUPPORT_BUNDLE, output=output)) == 0
    out = capsys.readouterr()
    assert "Read it before you send it" in out.err
    return out.out, (json if output == "json" else yaml).__dict__[
        "loads" if output == "json" else "safe_load"
    ](out.out)


def test_it_says_what_waits_and_why(world, capsys):
    world.fail(world.claim("broken", "class2"), "rpc error: code = Internal desc = on fire")
    world.claim("nowhere", "missing9")
    for output in ("", "json"):
        _, found = bundle(world, capsys, output)
        assert (found["apiVersion"], found["kind"]) == ("csi-fleet.io/v1", "SupportBundle")
        assert found["pending"]["waiting"] == 2
        assert {one["cause"] for one in found["explained"]} == {"driver-error", "class-missing"}
        (driver,) = (one for one in found["explained"] if one["cause"] == "driver-error")
        assert any("on fire" in entry["text"] for entry in driver["timeline"])
        assert found["failed"][0]["object"] == "shop/broken"
        assert set(DRIVERS) <= set(found["status"]["drivers"])
        assert set(DRIVERS) <= set(found["drivers"])
        assert any(one["check"] == "versions" for one in found["doctor"])
        assert {one["name"] for one in found["classes"]} == {"class0", "class1", "class2"}


def test_no_login_is_in_it_wherever_one_was_planted(world, capsys):
    """The bundle has no credential of a driver's error, a
    reason, a tenant's object, a class or csi-fleet's login.
    """
    errors = [
        f"rpc error: code = Internal desc = login admin:{PLANTED}@array failed",
        f"https://admin:{PLANTED}@array.example.org/api password={PLANTED}",
        f'rpc error: code = Internal desc = body {{"token": "{PLANTED}", "size": 3}}',
        f"rpc error: code = Internal desc = Authorization: Bearer {PLANTED}",
        f"rpc error: code = Internal desc = key {RANDOM} was refused",
        f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}\n-----END RSA PRIVATE KEY-----",
    ]
    for number, error in enumerate(errors):
        world.fail(world.claim(f"c{number}", f"class{number % 3}"), error)
    claim = world.api.of(paths.CLAIMS, "c0", "shop")
    claim["metadata"]["annotations"]["example.org/password"] = PLANTED
    world.api.add(paths.CLAIMS, claim)
    body = {"metadata": {"name": "secret"}, "provisioner": DRIVERS[0]}
    world.api.add(paths.STORAGE_CLASSES, body | {"parameters": {"adminPassword": PLANTED}})
    held = world.tools(Command.PAUSE, driver=DRIVERS[1], reason=f"see vault, password: {PLANTED}")
    assert pause.run(held) == 0
    capsys.readouterr()
    for output in ("", "json"):
        text, found = bundle(world, capsys, output)
        assert PLANTED not in text
        assert RANDOM not in text
        assert HIDDEN in text
        assert "adminPassword" in text
        assert found["pending"]["waiting"] >= 5


def test_what_cannot_be_read_is_said_and_the_rest_is_there(world, capsys):
    tools = world.tools(Command.SUPPORT_BUNDLE, output="json")
    tools.__dict__["redis"] = type(world.client).from_url("redis://127.0.0.1:1")
    assert support_bundle.run(tools) == 0
    found = json.loads(capsys.readouterr().out)
    assert "problem" in found["status"]
    assert len(found["classes"]) == 3


def test_it_takes_no_file(world):
    with pytest.raises(ConfigError, match="> FILE"):
        support_bundle.run(world.tools(Command.SUPPORT_BUNDLE, ("file",)))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password=abc def", f"password={HIDDEN} def"),
        ('{"adminPassword": "a \\" b", "size": 1}', f'{{"adminPassword": {HIDDEN}, "size": 1}}'),
        ("secret: 'x y' rest", f"secret: {HIDDEN} rest"),
        ("redis://user:pw@host:6379/0", f"redis://{HIDDEN}@host:6379/0"),
        ("http://token@host/x", f"http://{HIDDEN}@host/x"),
        ("AWS_SECRET_ACCESS_KEY=abc/+=", f"AWS_SECRET_ACCESS_KEY={HIDDEN}"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {HIDDEN}"),
        ("-----BEGIN PRIVATE KEY-----\nabc", HIDDEN),
        ("eyJhbGciOi.eyJzdWIiOiIx.c2ln", HIDDEN),
        (r"{\"password\":\"a b\",\"size\":1}", rf"{{\"password\":{HIDDEN},\"size\":1}}"),
        ("run --secret x --password=y -n z", f"run --secret {HIDDEN} --password={HIDDEN} -n z"),
        ("http://admin:pa/s@s@host/x", f"http://{HIDDEN}@host/x"),
        (
            "error getting secret key in namespace shop",
            "error getting secret key in namespace shop",
        ),
        (
            "csi.storage.k8s.io/provisioner-secret-name",
            "csi.storage.k8s.io/provisioner-secret-name",
        ),
    ],
)
def test_what_looks_like_a_login_is_hidden(text, left):
    assert scrubbed({"a": [text]}) == {"a": [left]}


@pytest.mark.parametrize(
    "text",
    [
        'secrets "key" not found',
        "error getting secret key in namespace shop",
        "pvc-0a1b2c3d-0000-1111-2222-333344445555",
        "claims|d.example.org@node-1|shop/data|u-1",
        "csi.storage.k8s.io/provisioner-secret-name",
        "2026-01-01T00:00:00.000Z",
        "taken by worker node-7:13904",
        "unix:///csi/csi.sock",
    ],
)
def test_what_a_person_needs_stays(text):
    assert scrubbed([text]) == [text]


@pytest.mark.parametrize(
    "piece", ["key.", "key", "a.", "://", '\\"', "-----BEGIN ", "aA1", "x:", "-key ", 'key="\\']
)
def test_a_driver_s_text_is_searched_in_a_moment_however_it_is_made(piece):
    """The search for credentials takes time in proportion to the
    text's length: at most 30 times as long for tenfold text.
    """
    took = []
    for length in (800, 8_000):
        text = piece * (length // len(piece))
        began = time.process_time()
        for _ in range(8_000 // length):
            scrubbed([text])
        took.append(time.process_time() - began)
    assert took[1] < 30 * took[0] + 1, took


def test_what_it_logs_in_with_is_hidden_everywhere():
    assert scrubbed(["abc is the word"], ["abc"]) == [f"{HIDDEN} is the word"]
