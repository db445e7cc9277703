"""The gateway of `adopt --as central` in front of a driver: a real haproxy with mutual TLS."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace

import pytest

from csi_client.client import CsiClient
from csi_client.errors import CsiError
from tests.support.csi_driver import DirectoryDriver
from tests.support.gateway import HOST, SEEN_SECONDS, Gateway
from tests.support.waiting import wait_until
from workers.cli import certificates

pytestmark = pytest.mark.integration


@pytest.fixture
def driver():
    with DirectoryDriver() as made:
        yield made


@pytest.fixture
def gateway(tmp_path, driver):
    with Gateway(tmp_path / "tls", driver.address) as made:
        yield made


@pytest.fixture
def opened():
    clients = []

    def start(gateway, **tls):
        files = replace(gateway.client_files(), **tls)
        clients.append(CsiClient(gateway.endpoint, timeout_seconds=5, allow_tcp=True, tls=files))
        return clients[-1]

    yield start
    for one in clients:
        one.close()


@pytest.fixture
def client(opened, gateway):
    made = opened(gateway)
    assert made.wait_connected(10)
    return made


def test_a_worker_reaches_the_driver_through_it(client, driver):
    assert client.plugin_info()[0] == driver.name


def test_only_a_certificate_for_clients_by_the_drivers_authority_is_let_in(gateway, opened):
    """The gateway accepts only client certificates of its own CA.

    Another driver's gateway has a certificate of that CA, but for servers.
    """
    folder = gateway.folder
    other = certificates.make_authority("other")
    cases = {
        "foreign": certificates.sign(*other, ["worker"], certificates.CLIENT),
        "server": gateway.sign("csi-fleet-other.vendor.svc", certificates.SERVER),
    }
    for name, (certificate, key) in cases.items():
        (folder / f"{name}.crt").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
        refused = opened(gateway, certificate=folder / f"{name}.crt", key=folder / f"{name}.key")
        with pytest.raises(CsiError) as raised:
            refused.probe(timeout_seconds=2)
        assert raised.value.from_transport, name
    nobody = opened(gateway, certificate=None, key=None)
    with pytest.raises(CsiError):
        nobody.probe(timeout_seconds=2)


def test_a_worker_refuses_a_gateway_of_another_name_or_authority(gateway, opened):
    stranger, _ = certificates.make_authority("stranger")
    (gateway.folder / "stranger.crt").write_bytes(stranger)
    for tls in (
        {"server_name": "csi-fleet-other.vendor.svc"},
        {"ca": gateway.folder / "stranger.crt"},
    ):
        with pytest.raises(CsiError):
            opened(gateway, **tls).probe(timeout_seconds=2)


def served(gateway):
    """Return the certificate that the gateway presents to a new connection."""
    context = ssl.create_default_context(cafile=gateway.folder / "ca.crt")
    context.check_hostname = False
    context.load_cert_chain(gateway.folder / "client.crt", gateway.folder / "client.key")
    with (
        socket.create_connection(("127.0.0.1", gateway.port), 5) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secure,
    ):
        return secure.getpeercert(binary_form=True)


def test_a_renewed_certificate_is_taken_up_without_a_restart(gateway, client):
    """The gateway reads a new certificate without a restart.

    Open connections stay open, and an unreadable certificate changes nothing.
    """
    before = served(gateway)
    process = gateway.process
    gateway.renew()
    wait_until(lambda: served(gateway) != before, SEEN_SECONDS, "the new one is served")
    assert client.connection_losses == 0
    assert client.probe()
    good = served(gateway)
    gateway.spoil()
    log = gateway.folder / "gateway.log"
    wait_until(
        lambda: "unable to load certificate" in log.read_text(), SEEN_SECONDS, "it is looked at"
    )
    assert served(gateway) == good
    gateway.renew()
    wait_until(lambda: served(gateway) not in {before, good}, SEEN_SECONDS, "the third is served")
    assert client.probe()
    assert gateway.process is process
    assert process.is_running()


def test_a_gateway_that_was_killed_is_found_again(gateway, client):
    gateway.crash()
    with pytest.raises(CsiError):
        client.probe(timeout_seconds=2)
    gateway.start()
    assert client.wait_connected(10)
    assert client.probe()


def test_a_driver_that_restarts_behind_it_is_a_lost_connection(gateway, client, driver):
    """The client counts the restart as a loss, so csi-fleet
    reads the driver's name and capabilities again.
    """
    driver.stop()
    wait_until(lambda: not client.is_connected or not answers(client), 10, "it is noticed")
    driver.start()
    wait_until(lambda: answers(client), 20, "it answers")
    assert client.connection_losses >= 1


def answers(client):
    try:
        return client.probe(timeout_seconds=2)
    except CsiError:
        return False


def test_a_frozen_gateway_ends_no_connection_and_goes_on(gateway, client):
    gateway.freeze()
    try:
        with pytest.raises(CsiError):
            client.probe(timeout_seconds=1)
    finally:
        gateway.thaw()
    assert client.probe()
