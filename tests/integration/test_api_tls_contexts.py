"""Client certificates in files and in data, on many connections at once; TLS within TLS."""

from __future__ import annotations

import base64
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer

import pytest
import yaml

from tests.integration.test_api_tls import HOST, Ok, Tunnel, requests_work, watches_work, written
from tests.support.certificates import make_ca, make_certificate
from workers.kube.connection import connect

OPENS = """
import sys, threading
from workers.kube.connection import connect
transport = connect(sys.argv[1], "").transport
def work():
    for _ in range(20):
        assert transport.send("GET", "/", [], timeout_seconds=20).status == 200
threads = [threading.Thread(target=work) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
print("all went well")
"""


def shown(is_data, **files):
    """Return entries of a kubeconfig with the files' paths or with their contents."""
    if is_data:
        return {f"{k}-data": base64.b64encode(v.read_bytes()).decode() for k, v in files.items()}
    return {name: str(path) for name, path in files.items()}


def server_context(folder):
    """Make an authority `ca` and return the TLS context of a server with its certificate."""
    make_ca(folder, "ca")
    make_certificate(folder, "ca", "server", HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return context


@contextmanager
def tls_server(context):
    with ThreadingHTTPServer(("127.0.0.1", 0), Ok) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield http.server_address[1]
        http.shutdown()


@pytest.mark.parametrize("is_data", [False, True])
def test_many_threads_open_connections_with_a_client_certificate(tmp_path, is_data):
    context = server_context(tmp_path)
    make_certificate(tmp_path, "ca", "client", HOST)
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with tls_server(context) as port:
        path = written(
            tmp_path,
            {
                "server": f"https://{HOST}:{port}",
                **shown(is_data, **{"certificate-authority": tmp_path / "ca.pem"}),
            },
        )
        config = yaml.safe_load(path.read_text())
        files = {"client-certificate": "client.pem", "client-key": "client.key"}
        config["users"][0]["user"] = shown(
            is_data, **{name: tmp_path / file for name, file in files.items()}
        )
        path.write_text(yaml.safe_dump(config))
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", OPENS, str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "all went well\n"), done.stderr[:600]


class TlsTunnel(Tunnel):
    """A proxy whose clients connect with TLS."""

    def __init__(self, port, context):
        self.context = context
        super().__init__(port)

    def run(self):
        with suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                ours = self.context.wrap_socket(plain, server_side=True)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += ours.recv(4096)
                ours.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                theirs = socket.create_connection(("127.0.0.1", self.port))
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self.copy, args=pair, daemon=True).start()


def test_requests_and_watches_go_through_a_proxy_with_tls(tmp_path, monkeypatch):
    context = server_context(tmp_path)
    with tls_server(context) as port:
        tunnel = TlsTunnel(port, context)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"https://{HOST}:{tunnel.listener.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        cluster = {
            "server": f"https://{HOST}:{port}",
            "certificate-authority": str(tmp_path / "ca.pem"),
        }
        connection = connect(str(written(tmp_path, cluster)), "")
        assert watches_work(connection)
        assert requests_work(connection)
        tunnel.listener.close()
