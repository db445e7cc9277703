"""Requests and watches trust the same API servers.

This includes authorities without key usage or key identifiers, as in EKS, MicroK8s and many other
distributions.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.support.certificates import make_ca, make_certificate, openssl
from workers.kube.connection import connect

HOST = "localhost"
BARE = "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"


class Ok(BaseHTTPRequestHandler):
    """Answers every request."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Make the authorities `plain`, `bare` (as in EKS), `other`, and two servers' certificates."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("plain", "other"):
        make_ca(folder, name)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    (folder / "bare.ext").write_text(f"basicConstraints=critical,CA:TRUE\n{BARE}")
    openssl(folder, *("req", *key, "-subj", "/CN=kubernetes", "-keyout", "bare.key"),
            *("-out", "bare.csr"))  # fmt: skip
    openssl(folder, *("x509", "-req", "-in", "bare.csr", "-signkey", "bare.key", "-days", "2"),
            *("-extfile", "bare.ext", "-out", "bare.pem"))  # fmt: skip
    for name in ("plain", "bare"):
        make_certificate(folder, name, f"{name}-server", HOST, extensions=BARE)
    return folder


@pytest.fixture(params=["plain", "bare"])
def server(request, certificates):
    """Run a TLS server with this authority's certificate; return the authority and the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    name = request.param
    context.load_cert_chain(
        certificates / f"{name}-server.pem", certificates / f"{name}-server.key"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Ok) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield name, http.server_address[1]
        http.shutdown()
        thread.join(10)


@pytest.mark.parametrize("host", [HOST, "127.0.0.1"])
@pytest.mark.parametrize("authority", ["its own", "other", "the system's", "not asked"])
def test_watches_trust_whom_requests_trust(server, certificates, tmp_path, host, authority):
    signer, port = server
    cluster = {"server": f"https://{host}:{port}"}
    if authority == "not asked":
        cluster["insecure-skip-tls-verify"] = True
    elif authority != "the system's":
        name = signer if authority == "its own" else "other"
        cluster["certificate-authority"] = str(certificates / f"{name}.pem")
    connection = connect(str(written(tmp_path, cluster)), "")
    is_trusted = authority == "not asked" or (authority == "its own" and host == HOST)
    assert requests_work(connection) == is_trusted
    assert watches_work(connection) == is_trusted


class Tunnel(threading.Thread):
    """A proxy for HTTP CONNECT."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.asked = port, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.start()

    def run(self):
        with suppress(OSError):
            while True:
                ours, _ = self.listener.accept()
                head = b""
                while b"\r\n\r\n" not in head:
                    head += ours.recv(4096)
                self.asked.append(head)
                ours.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                theirs = socket.create_connection(("127.0.0.1", self.port))
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, target):
        with source, suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_requests_and_watches_go_through_a_tunnel(server, certificates, tmp_path, monkeypatch):
    """Requests and watches use the tunnel.

    The proxy gets host and port, but cannot read the traffic.
    """
    signer, port = server
    tunnel = Tunnel(port)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{tunnel.listener.getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    cluster = {
        "server": "https://api.example.org:6443/front",
        "tls-server-name": HOST,
        "certificate-authority": str(certificates / f"{signer}.pem"),
    }
    connection = connect(str(written(tmp_path, cluster)), "")
    assert requests_work(connection)
    assert watches_work(connection)
    asked = [one.split()[:2] for one in tunnel.asked]
    assert asked == [[b"CONNECT", b"api.example.org:6443"]] * 2
    connection.transport.close()
    tunnel.listener.close()


@pytest.mark.parametrize(("name", "is_trusted"), [(HOST, True), ("other.example.org", False)])
def test_the_name_to_be_trusted_may_be_another_than_the_address(
    server, certificates, tmp_path, name, is_trusted
):
    signer, port = server
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "tls-server-name": name,
        "certificate-authority": str(certificates / f"{signer}.pem"),
    }
    connection = connect(str(written(tmp_path, cluster)), "")
    assert requests_work(connection) == is_trusted
    assert watches_work(connection) == is_trusted


def written(folder, cluster):
    """Write a kubeconfig for this cluster."""
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    return path


def requests_work(connection):
    try:
        return connection.transport.send("GET", "/", [], timeout_seconds=20).status == 200
    except OSError:
        return False


def watches_work(connection):
    try:
        stream = connection.transport.open("/", [], silence_seconds=20)
    except OSError:
        return False
    stream.close()
    return stream.status == 200
