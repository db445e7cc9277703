"""A driver over TCP with mutual TLS (central mode), on loopback."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from csi_client.client import CsiClient
from csi_client.connection import TlsFiles
from csi_client.errors import CsiError
from tests.support.csi_driver import DirectoryDriver
from tests.support.processes import free_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_ca(folder: Path, name: str) -> None:
    openssl(
        folder,
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"),
    )


def make_certificate(folder: Path, ca: str, name: str, host: str) -> None:
    openssl(
        folder,
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
    )
    (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
    openssl(
        folder,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key"),
        *("-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_ca(folder, "ca")
    make_ca(folder, "stranger-ca")
    make_certificate(folder, "ca", "driver", "driver.example.org")
    make_certificate(folder, "ca", "fleet", "fleet.example.org")
    make_certificate(folder, "stranger-ca", "stranger", "fleet.example.org")
    return folder


@pytest.fixture(scope="module")
def good(certificates: Path) -> TlsFiles:
    return TlsFiles(
        certificates / "ca.pem",
        certificates / "fleet.pem",
        certificates / "fleet.key",
        server_name="driver.example.org",
    )


@pytest.fixture(scope="module")
def driver(certificates: Path, good: TlsFiles) -> Iterator[DirectoryDriver]:
    files = {"certificate": "driver.pem", "key": "driver.key", "client-ca": "ca.pem"}
    arguments = [part for k, f in files.items() for part in (f"--tls-{k}", str(certificates / f))]
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with DirectoryDriver(endpoint=endpoint, tls=good, arguments=arguments) as driver:
        yield driver


def outcome(driver: DirectoryDriver, tls: TlsFiles | None) -> str:
    """Return the driver's name, or the status name of the error."""
    client = CsiClient(driver.address, allow_tcp=True, tls=tls, timeout_seconds=5)
    try:
        return client.plugin_info()[0]
    except CsiError as error:
        return error.code_name
    finally:
        client.close()


def test_good_certificates(driver: DirectoryDriver, good: TlsFiles) -> None:
    assert outcome(driver, good) == driver.name


def test_ca_that_did_not_sign_the_driver(
    driver: DirectoryDriver, good: TlsFiles, certificates: Path
) -> None:
    tls = replace(good, ca=certificates / "stranger-ca.pem")
    assert outcome(driver, tls) == "Unavailable"


def test_driver_of_another_name(driver: DirectoryDriver, good: TlsFiles) -> None:
    """The client refuses a valid certificate with another name,
    because its owner can be an attacker or another driver.
    """
    assert outcome(driver, replace(good, server_name="other.example.org")) == "Unavailable"


def test_host_of_the_address_must_match_without_a_server_name(
    driver: DirectoryDriver, good: TlsFiles
) -> None:
    assert outcome(driver, replace(good, server_name=None)) == "Unavailable"


def test_missing_client_certificate(driver: DirectoryDriver, good: TlsFiles) -> None:
    assert outcome(driver, replace(good, certificate=None, key=None)) == "Unavailable"


def test_client_certificate_of_a_stranger(
    driver: DirectoryDriver, good: TlsFiles, certificates: Path
) -> None:
    tls = replace(
        good, certificate=certificates / "stranger.pem", key=certificates / "stranger.key"
    )
    assert outcome(driver, tls) == "Unavailable"


def test_plain_text_client(driver: DirectoryDriver) -> None:
    assert outcome(driver, None) == "Unavailable"
