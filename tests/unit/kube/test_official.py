"""The old `auth-provider: oidc` works through the official client, which renews the token."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import pytest
import yaml

from workers.errors import ConfigError
from workers.kube import connection


def jwt(expires: int) -> str:
    parts = ({"alg": "none"}, {"exp": expires})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join([*(text.rstrip("=") for text in texts), "c2ln"])


ERRORS = {"invalid_request", "access_denied"}
EXPIRED, FRESH = jwt(1_000_000_000), jwt(4_000_000_000)


@pytest.fixture
def issuer():
    """An OIDC issuer that renews one token."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/.well-known/openid-configuration"
            self.answer({"token_endpoint": f"{address}/token"})

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            asked.append(parse_qs(self.rfile.read(length).decode()))
            if (error := asked[-1]["refresh_token"][0]) in ERRORS:
                self.answer({"error": error}, 400)
            else:
                self.answer({"id_token": FRESH, "refresh_token": "r2", "access_token": "a"})

        def answer(self, body, status=200):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield address, asked
        server.shutdown()
        thread.join()


@pytest.fixture
def connect(tmp_path, monkeypatch, issuer):
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")  # the test's issuer has no TLS

    def connect(refresh_token, id_token=EXPIRED):
        config = {
            "idp-issuer-url": issuer[0],
            "client-id": "c",
            "client-secret": "s",
            "id-token": id_token,
            "refresh-token": refresh_token,
        }
        path = tmp_path / "config"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "x",
                    "contexts": [{"name": "x", "context": {"cluster": "k", "user": "u"}}],
                    "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
                    "users": [
                        {"name": "u", "user": {"auth-provider": {"name": "oidc", "config": config}}}
                    ],
                }
            )
        )
        return connection.connect(str(path), "")

    return connect


def test_an_expired_token_is_renewed(connect, issuer):
    found = connect("r1")
    assert [one["refresh_token"] for one in issuer[1]] == [["r1"]]
    assert found.authorization() == f"Bearer {FRESH}"


def test_a_token_that_is_good_asks_nobody(connect, issuer):
    assert connect("r1", FRESH).authorization() == f"Bearer {FRESH}"
    assert issuer[1] == []


def test_a_client_that_the_issuer_does_not_know_keeps_its_token(connect):
    """The official client decides so, and the API server then judges the token."""
    assert connect("invalid_request").authorization() == f"Bearer {EXPIRED}"


def test_another_refusal_of_the_issuer_is_one_line(connect):
    with pytest.raises(ConfigError, match=r"client configuration .*access_denied"):
        connect("access_denied")
