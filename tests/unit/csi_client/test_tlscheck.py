"""Why TLS to a driver fails, judged by what the server does after the handshake."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from csi_client import tlscheck
from csi_client.connection import TlsFiles
from csi_client.tlscheck import (
    EXPIRED,
    NO_CERTIFICATE,
    NOT_ACCEPTED,
    NOT_TLS,
    UNKNOWN_CA,
    WRONG_NAME,
    own_certificate_trouble,
    refusal,
)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, found: str
) -> None:
    """gRPC servers refuse a client without a certificate by closing the connection silently.

    What gRPC accepts is accepted: Python 3.13 would reject the authority of `make_ca`.
    """
    made = ssl.create_default_context

    def strict(*args: Any, **options: Any) -> ssl.SSLContext:
        context = made(*args, **options)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(tlscheck.ssl, "create_default_context", strict)
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
    """gRPC servers refuse a bad client certificate without a reason."""
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "fleet", "fleet.example.org")
    make_certificate(tmp_path, "ca", "old", "fleet.example.org", days=0)
    told = own_certificate_trouble(tmp_path / f"{certificate}.pem", tmp_path / f"{key}.key")
    assert told.startswith(found)
    assert bool(told) is bool(found)


class Handshake:
    """A fake TLS context, socket and connection in one; `ends` is what a read returns or raises."""

    verify_flags = 0

    def __init__(self, ends: Exception | bytes) -> None:
        self.ends, self.told = ends, []

    def set_alpn_protocols(self, names: list[str]) -> None:
        self.told.append(names)

    def load_cert_chain(self, *files: Path) -> None:
        self.told.append(files)

    def wrap_socket(self, _plain: object, *, server_hostname: str) -> Self:
        self.told.append(server_hostname)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def sendall(self, data: bytes) -> None:
        self.told.append(data[:3])

    def recv(self, _size: int) -> bytes:
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends


def failed(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "no")
    error.reason = reason  # type: ignore[assignment]
    return error


def not_verified(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "no")
    error.verify_message = message
    return error


# A placeholder for a message about csi-fleet's own certificate.
OURS = "ours"


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        pytest.param(b"x", "", id="it goes on"),
        pytest.param(b"", OURS, id="it hangs up"),
        pytest.param(ConnectionResetError(), OURS, id="it hangs up at once"),
        pytest.param(BrokenPipeError(), OURS, id="it hung up before we spoke"),
        pytest.param(TimeoutError(), "", id="no answer is no trouble of TLS"),
        pytest.param(failed("WRONG_VERSION_NUMBER"), NOT_TLS, id="plain text"),
        pytest.param(failed("RECORD_LAYER_FAILURE"), NOT_TLS, id="no record"),
        pytest.param(failed("record_layer_failure"), NOT_TLS, id="in small letters"),
        pytest.param(failed("TLSV1_ALERT_PROTOCOL_VERSION"), OURS, id="it speaks TLS"),
        pytest.param(failed("SSLV3_ALERT_BAD_RECORD_MAC"), OURS, id="it speaks TLS, too"),
        pytest.param(failed("TLSV13_ALERT_CERTIFICATE_REQUIRED"), OURS, id="it wants one"),
        pytest.param(failed("UNEXPECTED_EOF_WHILE_READING"), OURS, id="cut off"),
        pytest.param(failed(None), OURS, id="nobody knows why"),
        pytest.param(not_verified("certificate has expired"), EXPIRED, id="expired"),
        pytest.param(not_verified("Hostname mismatch, x"), WRONG_NAME, id="another host"),
        pytest.param(not_verified("IP address mismatch, x"), WRONG_NAME, id="another address"),
        pytest.param(not_verified("self-signed certificate"), UNKNOWN_CA, id="another CA"),
    ],
)
@pytest.mark.parametrize("has_certificate", [True, False])
@pytest.mark.parametrize("name", ["driver.example.org", None])
def test_each_end_of_a_handshake_has_its_words(
    monkeypatch: pytest.MonkeyPatch,
    ends: Any,
    found: str,
    has_certificate: bool,
    name: str | None,
) -> None:
    """An operator gets one line; the client's certificate is used if there is one."""
    handshake, own = Handshake(ends), []
    monkeypatch.setattr(tlscheck.ssl, "create_default_context", lambda **_: handshake)
    monkeypatch.setattr(tlscheck.socket, "create_connection", lambda *_: handshake)
    monkeypatch.setattr(tlscheck, "own_certificate_trouble", lambda *files: own.append(files) or "")
    files = (Path("/c.pem"), Path("/c.key")) if has_certificate else (None, None)
    ours = NOT_ACCEPTED if has_certificate else NO_CERTIFICATE
    told = refusal("host", 1, TlsFiles(Path("/ca.pem"), *files, server_name=name))
    assert told == (ours if found == OURS else found)
    chain = [files] if has_certificate else []
    assert own == chain
    assert handshake.told == [["h2"], *chain, name or "host", b"PRI"]


def test_a_certificate_of_ours_that_is_no_good_is_told_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No connection is made; a certificate without its key is not checked on its own."""
    monkeypatch.setattr(tlscheck, "own_certificate_trouble", lambda *_: EXPIRED)
    monkeypatch.setattr(
        tlscheck.socket, "create_connection", lambda *_: pytest.fail("nobody is asked")
    )
    files = TlsFiles(Path("/ca.pem"), Path("/c.pem"), Path("/c.key"))
    assert refusal("host", 1, files) == EXPIRED


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_half_a_pair_is_not_judged_by_itself(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    handshake = Handshake(b"x")
    monkeypatch.setattr(tlscheck.ssl, "create_default_context", lambda **_: handshake)
    monkeypatch.setattr(tlscheck.socket, "create_connection", lambda *_: handshake)
    monkeypatch.setattr(
        tlscheck, "own_certificate_trouble", lambda *_: pytest.fail("there is no pair")
    )
    pair = {"certificate": Path("/c.pem"), "key": Path("/c.key"), missing: None}
    assert refusal("host", 1, TlsFiles(Path("/ca.pem"), **pair)) == ""
