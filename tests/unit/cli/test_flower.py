"""Flower reads its files only once, so it is restarted when one of them changes."""

from __future__ import annotations

import socket

import pytest

from workers.__main__ import main
from workers.cli.flower import Restarter, check_free, files
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import ConfigError


@pytest.fixture
def login(tmp_path):
    path = tmp_path / "login"
    path.write_text("admin:one")
    return path


@pytest.fixture
def ends():
    return []


@pytest.fixture
def restarter(login, ends):
    return Restarter(["", str(login)], lambda: ends.append(1))


def test_what_stays_stops_nothing(restarter, ends, login):
    login.write_text("admin:one")
    assert restarter.step() > 0
    assert ends == []


def test_another_login_starts_it_anew(restarter, ends, login):
    login.write_text("admin:two")
    restarter.step()
    assert ends == [1]


def test_a_file_that_is_being_replaced_is_waited_for(restarter, ends, login):
    login.unlink()
    restarter.step()
    assert ends == []
    login.write_text("admin:two")
    restarter.step()
    assert ends == [1]


def test_every_file_that_it_is_given_is_looked_at(tmp_path, login):
    (tmp_path / "password").write_text("p\n")
    flags = {
        "redis-password-file": tmp_path / "password",
        "flower-basic-auth-file": login,
        "flower-tls-cert-file": tmp_path / "c",
        "flower-tls-key-file": tmp_path / "k",
    }
    url = f"--redis-url=rediss://h/0?ssl_ca_certs={tmp_path / 'ca'}"
    given = [url, *(f"--{name}={path}" for name, path in flags.items())]
    settings = parse(Command.FLOWER, given, {})
    assert {*map(str, flags.values()), str(tmp_path / "ca")} == {*filter(None, files(settings))}


def test_a_port_that_is_taken_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["flower", f"--flower-port={port}", "--redis-url=redis://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        f"csi-fleet flower: cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Set a different --flower-port or --flower-address\n"
    )


def test_an_address_of_no_machine_is_one_line():
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:5555: "):
        check_free("192.0.2.1", 5555)
