"""Addresses and TLS files (P-002)."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_client import connection
from csi_client.connection import CsiAddressError, TlsFiles, open_channel, parse_address
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("address", "target"),
    [
        pytest.param("/run/csi/csi.sock", "unix:/run/csi/csi.sock", id="path"),
        pytest.param("unix:///run/csi/csi.sock", "unix:/run/csi/csi.sock", id="unix URL"),
        pytest.param("unix://csi.sock", "unix:csi.sock", id="relative, as Go dials it"),
        pytest.param("unix://@csi", "unix-abstract:csi", id="abstract"),
    ],
)
def test_p002_unix_addresses(address: str, target: str) -> None:
    assert parse_address(address) == target
    assert parse_address(address, allow_tcp=True) == target


@pytest.mark.parametrize("address", ["tcp://h:1", "h:1", "dns:///h:1", "csi.sock", "", "unix:/a"])
def test_p002_other_schemes_are_refused_beside_the_driver(address: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_address(address)
    assert str(caught.value) == (
        "OnConnectionLoss callback only supported for unix:// addresses: "
        "give an absolute path, such as /run/csi/socket"
    )


@pytest.mark.parametrize(
    ("address", "target"),
    [
        pytest.param("csi.example.org:9000", "dns:///csi.example.org:9000", id="host"),
        pytest.param("dns:///10.0.0.1:1", "dns:///10.0.0.1:1", id="dns URL"),
        pytest.param("[fd00::1]:65535", "dns:///[fd00::1]:65535", id="IPv6"),
    ],
)
def test_tcp_addresses_in_central_mode(address: str, target: str) -> None:
    assert parse_address(address, allow_tcp=True) == target


@pytest.mark.parametrize(
    "address", ["host", "host:", "host:0", "host:65536", "http://h:1", "a b:1"]
)
def test_bad_tcp_addresses(address: str) -> None:
    with pytest.raises(CsiAddressError, match="neither a unix socket"):
        parse_address(address, allow_tcp=True)


@pytest.mark.parametrize("address", ["unix://", "unix://@"])
def test_unix_address_without_a_path(address: str) -> None:
    with pytest.raises(CsiAddressError, match="has no path"):
        parse_address(address)


def test_socket_path_too_long_for_the_kernel() -> None:
    """gRPC itself would only report `unavailable`, forever."""
    assert parse_address("/" + 106 * "x")
    with pytest.raises(CsiAddressError, match="longer than 107 bytes"):
        parse_address("/" + 107 * "x")


def test_tls_files_are_named_when_missing(tmp_path: Path) -> None:
    with pytest.raises(CsiAddressError, match=r"ca\.pem: No such file"):
        open_channel("dns:///h:1", tls=TlsFiles(tmp_path / "ca.pem"))


def test_client_certificate_needs_its_key(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(CsiAddressError, match="must be given together"):
        TlsFiles(tmp_path / "ca.pem", certificate=tmp_path / "c.pem").credentials()


def test_tls_on_a_unix_socket_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(CsiAddressError, match="not for a unix socket"):
        open_channel("unix:/s", tls=TlsFiles(tmp_path / "ca.pem"))


class Looked:
    """A link that counts how often its state is checked."""

    def __init__(self) -> None:
        self.count = 0

    def look(self) -> bool:
        self.count += 1
        return True


def test_links_are_looked_at_while_there_are_any() -> None:
    """A lost connection is noticed without a call."""
    watch, first, second = connection._Watch(), Looked(), Looked()
    watch.add(first)  # type: ignore[arg-type]
    wait_until(lambda: first.count > 0, 30, "it is looked at")
    watch.remove(first)  # type: ignore[arg-type]
    wait_until(lambda: watch.silent_seconds() == 0, 30, "its thread has ended")
    watch.add(second)  # type: ignore[arg-type]
    wait_until(lambda: second.count > 0, 30, "a later one is looked at too")
    watch.remove(second)  # type: ignore[arg-type]
