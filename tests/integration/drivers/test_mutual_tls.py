"""Drivers over TCP: a peer with the wrong certificate is refused, and one log line says why."""

from __future__ import annotations

import logging
import shutil
import socket
from dataclasses import replace

import pytest

from csi_client.connection import TlsFiles
from tests.support.certificates import make_ca, make_certificate
from tests.support.csi_driver import DirectoryDriver
from tests.support.processes import free_port
from tests.support.waiting import wait_until
from workers.config.settings import Settings
from workers.drivers import link as links
from workers.drivers.driversfile import DriverSpec
from workers.drivers.fleet import Fleet
from workers.observability.logformat import read, render_text

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command"),
]


class NoQueue:
    """Accepts limits and registrations, and keeps nothing."""

    def set_limits(self, *_, **__):
        pass

    def register(self, *_, **__):
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_ca(folder, "ca")
    make_ca(folder, "stranger")
    make_certificate(folder, "ca", "driver", "driver.example.org")
    make_certificate(folder, "ca", "fleet", "fleet.example.org")
    make_certificate(folder, "ca", "old", "fleet.example.org", days=0)
    make_certificate(folder, "ca", "old-driver", "driver.example.org", days=0)
    return folder


@pytest.fixture(scope="module")
def good(folder):
    name = "driver.example.org"
    return TlsFiles(folder / "ca.pem", folder / "fleet.pem", folder / "fleet.key", server_name=name)


def serve(folder, good, certificate):
    files = {
        "certificate": f"{certificate}.pem",
        "key": f"{certificate}.key",
        "client-ca": "ca.pem",
    }
    arguments = [part for k, f in files.items() for part in (f"--tls-{k}", str(folder / f))]
    return DirectoryDriver(endpoint=f"tcp://127.0.0.1:{free_port()}", tls=good, arguments=arguments)


@pytest.fixture(scope="module")
def driver(folder, good):
    with serve(folder, good, "driver") as driver:
        yield driver


def outcome(driver, tls, caplog, monkeypatch, *, name=None):
    """Return the log lines until the driver is known or refused, and the known drivers."""
    monkeypatch.setattr(links, "TELL_AFTER_SECONDS", 0.2)
    monkeypatch.setattr("workers.drivers.fleet.TELL_AFTER_SECONDS", 0.2)
    caplog.set_level(logging.INFO)
    spec = DriverSpec(name or driver.name, driver.address, tls=tls)
    fleet, queue = Fleet(Settings()), NoQueue()
    try:
        fleet.apply({spec.name: spec})

        def is_over():
            fleet.tick(queue, queue)
            return caplog.records

        wait_until(is_over, 20, "known or refused")
        for _ in range(20):
            fleet.tick(queue, queue)
        return [render_text(read(record)) for record in caplog.records], fleet.drivers()
    finally:
        fleet.stop()


def test_right_certificates_are_served(driver, good, caplog, monkeypatch):
    lines, drivers = outcome(driver, good, caplog, monkeypatch)
    (line,) = lines
    assert line.endswith(f'"Detected CSI driver" driver="{driver.name}"')
    assert [one.name for one in drivers] == [driver.name]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"ca": "stranger.pem"}, "Check tls.ca", id="wrong CA"),
        pytest.param({"server_name": "other.example.org"}, "Check tls.serverName", id="wrong name"),
        pytest.param(
            {"certificate": "old.pem", "key": "old.key"},
            "expired. Renew the certificate",
            id="expired",
        ),
        pytest.param(
            {"certificate": None, "key": None}, "Set tls.certificate", id="no client certificate"
        ),
    ],
)
def test_wrong_one_is_refused_in_one_line(
    driver, good, folder, change, expected, caplog, monkeypatch
):
    files = {
        k: folder / v if v and "." in v and k != "server_name" else v for k, v in change.items()
    }
    lines, drivers = outcome(driver, replace(good, **files), caplog, monkeypatch)
    assert drivers == []
    assert len(lines) == 1, lines
    assert expected in lines[0]
    assert driver.name in lines[0]
    assert "\n" not in lines[0]


def test_expired_certificate_of_the_driver(folder, good, caplog, monkeypatch):
    driver = serve(folder, good, "old-driver")
    try:
        driver.start(wait=False)
        host, _, port = driver.address.rpartition(":")
        wait_until(lambda: socket.create_connection((host, int(port))).close() or True, 20, "up")
        lines, drivers = outcome(driver, good, caplog, monkeypatch)
    finally:
        driver.close()
    assert drivers == []
    assert "expired. Renew the certificate" in lines[-1]


def test_another_driver_at_the_endpoint_is_refused(driver, good, caplog, monkeypatch):
    lines, drivers = outcome(driver, good, caplog, monkeypatch, name="mine.example.org")
    assert drivers == []
    expected = f"the driver at {driver.address} is {driver.name}, not mine.example.org, "
    expected += "so it is not served. Correct the name or the endpoint"
    assert [line.partition("err=")[2] for line in lines] == [f'"{expected}"']
