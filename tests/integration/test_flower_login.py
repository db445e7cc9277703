"""Flower over HTTPS and with an identity provider's login; csi-fleet only passes the options."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from tests.support.certificates import make_ca, make_certificate
from tests.support.fleet import ROOT, environment, program
from tests.support.processes import free_port, start_process
from tests.support.waiting import wait_until

OIDC = {
    "provider": "gitlab",
    "allowed": ".*@example.org",
    "client-id": "flower",
    "redirect-uri": "https://flower.example.org/login",
}


@pytest.fixture
def flower(redis_server, tmp_path):
    """Return a function that starts Flower with flags and returns its port once it answers."""
    started = []

    def start(*flags, **arguments):
        port = free_port()
        flags = [f"--flower-port={port}", f"--redis-url={redis_server.url}", *flags]
        process = start_process(
            "flower",
            [*program(), "flower", *flags, f"--state-dir={tmp_path}"],
            log=tmp_path / "flower.log",
            env=environment(),
            cwd=ROOT,
        )
        started.append(process)
        scheme = "https" if arguments else "http"
        health = f"{scheme}://localhost:{port}/healthcheck"
        wait_until(
            lambda: requests.get(health, timeout=5, **arguments).ok,
            90,
            "Flower answers",
            fatal=AssertionError,
        )
        return port

    yield start
    for process in started:
        process.stop()


def test_https_with_our_certificate_and_no_plain_http(flower, tmp_path):
    make_ca(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "flower", "localhost")
    authority = str(tmp_path / "ca.pem")
    port = flower(
        f"--flower-tls-cert-file={tmp_path / 'flower.pem'}",
        f"--flower-tls-key-file={tmp_path / 'flower.key'}",
        verify=authority,
    )
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"https://localhost:{port}/", timeout=10)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"http://localhost:{port}/", timeout=10)


def test_who_is_not_logged_in_is_sent_to_the_provider(flower, tmp_path):
    """A user without login is redirected with the client
    id and the address, but never with the secret.
    """
    secret = tmp_path / "oidc"
    secret.write_text("hunter2")
    flags = [f"--flower-oidc-{name}={text}" for name, text in OIDC.items()]
    port = flower(*flags, f"--flower-oidc-secret-file={secret}")
    first = requests.get(f"http://localhost:{port}/tasks", timeout=10, allow_redirects=False)
    assert first.status_code == 302
    assert urlsplit(first.headers["Location"]).path == "/login"
    login = requests.get(f"http://localhost:{port}/login", timeout=10, allow_redirects=False)
    query = parse_qs(urlsplit(login.headers["Location"]).query)
    assert query["client_id"] == ["flower"]
    assert query["redirect_uri"] == [OIDC["redirect-uri"]]
    assert "hunter2" not in login.text + login.headers["Location"]
    assert "hunter2" not in (tmp_path / "flower.log").read_text()
