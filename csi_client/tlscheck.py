"""Finds out why TLS to a driver fails, using Python's ssl module; gRPC only reports "closed".

With TLS 1.3, a server refuses the client's certificate only after the client has finished the
handshake, and gRPC servers give no reason. So this module also examines our own certificate.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from csi_client.connection import TlsFiles

TIMEOUT_SECONDS: Final = 5.0
# The first bytes from an HTTP/2 client: the preface and an empty SETTINGS frame (RFC 9113, 3.4).
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"

EXPIRED: Final = "a certificate has expired"
WRONG_NAME: Final = "the driver's certificate is for a different name"
UNKNOWN_CA: Final = "the driver's certificate is not signed by the given CA"
NO_CERTIFICATE: Final = "the driver requires a client certificate"
NOT_ACCEPTED: Final = "the driver does not accept our client certificate"
NOT_TLS: Final = "the driver does not speak TLS"


def refusal(host: str, port: int, tls: TlsFiles) -> str:
    """Return why TLS fails: one of this module's constants or another short message.

    Return "" if TLS is not the problem. The function connects once, and blocks for about 5 s at
    most.
    """
    if tls.certificate is not None and tls.key is not None:
        trouble = own_certificate_trouble(tls.certificate, tls.key)
        if trouble:
            return trouble
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        # Unlike Python since version 3.13, gRPC does not refuse an authority without key usage.
        context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
        with (
            socket.create_connection((host, port), TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=tls.server_name or host) as secure,
        ):
            secure.sendall(_PREFACE)
            if secure.recv(1):
                return ""
    except ssl.SSLCertVerificationError as error:
        return _verification(error.verify_message)
    except ssl.SSLError as error:
        reason = (error.reason or "").upper()
        if "ALERT" not in reason and ("VERSION" in reason or "RECORD" in reason):
            return NOT_TLS
    except (ConnectionResetError, BrokenPipeError):
        pass
    except OSError:
        return ""
    # The server closed the connection after the handshake, so it refuses our certificate.
    return NOT_ACCEPTED if tls.certificate is not None else NO_CERTIFICATE


def own_certificate_trouble(certificate: Path, key: Path) -> str:
    """Check our certificate with an in-memory handshake; return `EXPIRED`, a message, or ""."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(certificate, key)
        client.load_verify_locations(certificate)
    except (ssl.SSLError, OSError) as error:
        return f"client certificate and key cannot be used: {error}"
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(3):
            for side in (ours, theirs):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        return EXPIRED if "expired" in error.verify_message else ""
    except ssl.SSLError:
        return ""
    return ""


def _verification(message: str) -> str:
    if "expired" in message:
        return EXPIRED
    if "ostname mismatch" in message or "IP address mismatch" in message:
        return WRONG_NAME
    return UNKNOWN_CA
