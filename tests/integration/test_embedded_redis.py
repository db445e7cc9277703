"""The Redis of `csi-fleet run`, in whatever folder the user has."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.app import make_app, publisher
from workers.cli import embedded_redis
from workers.cli.tools import with_redis
from workers.config.flags import Command
from workers.config.load import parse
from workers.queue.connection import connect
from workers.queue.keys import claim_key


@pytest.mark.parametrize("name", ["plain", "a blank", "a%41?#é'\"\\"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_any_name_of_a_folder_will_do(tmp_path, monkeypatch, name, is_relative):
    """Parts get the URL in the variable, where blanks part shards; tools look into the folder."""
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
        publisher(make_app(part))([claim_key("d", "ns", "a", "u")])
        assert client.dbsize() == 1
    finally:
        embedded_redis.stop(server, state)
