"""Redis clients use the password that its file holds at the time of the login."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from kombu.utils.json import dumps

from workers.app import make_app
from workers.config.redisurl import parse_sentinels
from workers.config.settings import RedisSettings, Settings
from workers.queue.connection import (
    FileLogin,
    connect,
    first_line,
    sentinel_options,
    split_login,
)

if TYPE_CHECKING:
    from pathlib import Path

SENTINELS = "sentinel://worker:old@one,two/m?db=3"
TLS = SENTINELS + "&ssl_ca_certs=/ca"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(b"new\n", "new", id="the line"),
        pytest.param(b"new\nold\n", "new", id="the first of several"),
        pytest.param(b"of two words\n", "of two words", id="with blanks"),
        pytest.param(b"", "old", id="being written"),
        pytest.param(b"\xff\xfe", "old", id="no text"),
        pytest.param(None, "old", id="being replaced"),
    ],
)
@pytest.mark.parametrize("user", ["", "worker"])
def test_each_login_reads_the_file(
    tmp_path: Path, written: bytes | None, read: str, user: str
) -> None:
    """There is never an error: until the file can be read, the previous password is used."""
    file = tmp_path / "password"
    if written is not None:
        file.write_bytes(written)
    login = FileLogin(user, "old", str(file))
    expected = (user, read) if user else (read,)
    assert login.get_credentials() == expected
    assert asyncio.run(login.get_credentials_async()) == expected


def test_without_a_password_file_nothing_is_read() -> None:
    assert first_line("") == ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://me:a%2Fb@host:1/0", ("redis://host:1/0", "me", "a/b")),
        ("rediss://host/0?ssl_ca_certs=/ca", ("rediss://host/0?ssl_ca_certs=/ca", "", "")),
        ("unix://:p@/run/redis.sock?db=1", ("unix:///run/redis.sock?db=1", "", "p")),
    ],
)
def test_a_login_is_split_from_its_url(url: str, expected: tuple[str, str, str]) -> None:
    assert split_login(url) == expected


@pytest.mark.parametrize(
    "url", ["redis://u:old@h/0", "rediss://u:old@h/0", "unix://u:old@/s", SENTINELS, TLS]
)
def test_with_a_file_every_client_logs_in_by_it(tmp_path: Path, url: str) -> None:
    """This includes sentinels, although the library refuses two sources of a login."""
    file = tmp_path / "password"
    file.write_text("new")
    pool = connect(url, password_file=str(file)).connection_pool
    connection = pool.make_connection()
    assert connection.credential_provider.get_credentials()[1] == "new"
    assert "password" not in pool.connection_kwargs


@pytest.mark.parametrize("url", [SENTINELS, TLS], ids=["tcp", "tls"])
def test_how_sentinels_and_master_are_asked(url: str) -> None:
    """A sentinel is asked once, within a second; TLS is as for the servers, without a password."""
    pool = connect(url).connection_pool
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (3, "old")
    assert ("SSL" in pool.connection_class.__name__) is (url == TLS)
    for one in pool.sentinel_manager.sentinels:
        connection = one.connection_pool.make_connection()
        assert connection.socket_timeout == connection.socket_connect_timeout == 1.0
        assert connection.retry.get_retries() == 0
        assert not connection.password
        assert ("SSL" in type(connection).__name__) is (url == TLS)


def test_celery_reads_the_file_too_and_reports_no_password(tmp_path: Path) -> None:
    """Celery's pools copy the connection; copies read the file, and reports hide the password."""
    file = tmp_path / "password"
    file.write_text("new")
    redis = RedisSettings(url="redis://h/0", username="u", password="o", password_file=str(file))
    app = make_app(Settings(redis=redis))
    connection = app.connection_for_write().clone()
    assert connection.credential_provider.get_credentials() == ("u", "new")
    report = connection.info()
    report.pop("password")
    assert "new" not in json.loads(dumps(report))["credential_provider"]


def test_the_sentinels_login() -> None:
    url = "sentinel://one/m?sentinel_password=hush&sentinel_username=watcher"
    login = sentinel_options(parse_sentinels(url))["credential_provider"]
    assert login.get_credentials() == ("watcher", "hush")
    assert "credential_provider" not in sentinel_options(parse_sentinels("sentinel://one/m"))
