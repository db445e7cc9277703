"""Requests (libcurl) and watches (urllib3) trust the same API servers, on every Python.

Since 3.13 Python refuses authorities without key usage or key identifiers, which EKS, MicroK8s and
many others have; here the older Pythons are made to refuse them as well.
"""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3.connection
import yaml
from urllib3.exceptions import HTTPError
from urllib3.util import ssl_

from tests.support.certificates import make_ca, make_certificate, openssl
from workers.kube.connection import connect

HOST = "localhost"
BARE = "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"


class Ok(BaseHTTPRequestHandler):
    """Answers everything."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Default contexts as Python 3.13 makes them."""
    made = ssl_.create_urllib3_context

    def make(*args, **options):
        context = made(*args, **options)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl_, "create_urllib3_context", make)
    monkeypatch.setattr(urllib3.connection, "create_urllib3_context", make)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Authorities `plain`, `bare` (as EKS has) and `other`; a certificate of the first two."""
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
    """A TLS server whose certificate that authority has signed; its name and port."""
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
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
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
    connection = connect(str(kubeconfig), "", pool_size=1)
    is_trusted = authority == "not asked" or (authority == "its own" and host == HOST)
    assert requests_work(connection) == is_trusted
    assert watches_work(connection) == is_trusted


def requests_work(connection):
    try:
        return connection.transport.send("GET", "/", [], None, timeout_seconds=20).status == 200
    except OSError:
        return False


def watches_work(connection):
    try:
        answer = connection.pool.request("GET", connection.base_url, retries=False, timeout=20)
    except HTTPError:
        return False
    return answer.status == 200
