"""Why does TLS to a driver fail? Judged by what the server does after the handshake."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from csi_client.connection import TlsFiles
from csi_client.tlscheck import EXPIRED, NO_CERTIFICATE, own_certificate_trouble, refusal
from tests.support.certificates import make_ca, make_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(b"\0", "", id="speaks on: TLS is not the trouble"),
        pytest.param(b"", NO_CERTIFICATE, id="hangs up"),
    ],
)
def test_a_server_that_goes_on_after_the_handshake_has_no_trouble_with_tls(
    tmp_path: Path, answer: bytes, found: str
) -> None:
    """gRPC's servers refuse a client without a certificate by hanging up, without a reason."""
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "driver", "driver.example.org")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "driver.pem", tmp_path / "driver.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        tls = TlsFiles(tmp_path / "ca.pem", server_name="driver.example.org")
        assert refusal("127.0.0.1", listener.getsockname()[1], tls) == found
        thread.join(10)


@pytest.mark.parametrize(
    ("certificate", "key", "found"),
    [
        pytest.param("fleet", "fleet", "", id="good, whatever name it carries"),
        pytest.param("old", "old", EXPIRED, id="expired"),
        pytest.param("fleet", "old", "client certificate and key cannot be used: ", id="no pair"),
    ],
)
def test_the_own_certificate_is_judged_without_the_driver(
    tmp_path: Path, certificate: str, key: str, found: str
) -> None:
    """gRPC's servers refuse it without a reason."""
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "fleet", "fleet.example.org")
    make_certificate(tmp_path, "ca", "old", "fleet.example.org", days=-1)
    told = own_certificate_trouble(tmp_path / f"{certificate}.pem", tmp_path / f"{key}.key")
    assert told.startswith(found)
    assert bool(told) is bool(found)
