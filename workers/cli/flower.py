"""`csi-fleet flower`: runs Flower on the broker, read-only, with bounded memory and a login."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from workers.app import make_app
from workers.cli import fleetweb
from workers.cli.firstping import ask_redis
from workers.config.checks import OIDC_PROVIDERS
from workers.errors import ConfigError
from workers.loop import Loop
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.config.settings import Settings

_log = get_logger(__name__)

LOOK_SECONDS: Final = 5.0


def arguments(settings: Settings) -> list[str]:
    """Return Flower's options for memory, pickles, logins and stale workers."""
    flower = settings.flower
    found = [
        f"--address={flower.address}",
        f"--port={flower.port}",
        "--max_tasks=10000",
        "--persistent=False",
        "--purge_offline_workers=300",
        "--read_only=True",
        "--tasks_columns=name,args,state,received,started,runtime,worker,exception",
    ]
    if flower.basic_auth:
        found.append(f"--basic_auth={','.join(flower.basic_auth)}")
    if all(flower.tls):
        certificate, key = (str(Path(one).resolve()) for one in flower.tls)
        found += [f"--certfile={certificate}", f"--keyfile={key}"]
    if (oidc := flower.oidc) is not None:
        found += [
            f"--auth_provider=flower.views.auth.{OIDC_PROVIDERS[oidc.provider]}",
            f"--auth={oidc.allowed}",
            f"--oauth2_key={oidc.client_id}",
            f"--oauth2_secret={oidc.secret}",
            f"--oauth2_redirect_uri={oidc.redirect_uri}",
        ]
    return found


def tls_options(url: str) -> dict[str, object] | None:
    """Return options for Flower's own Redis client, which ignores the TLS files in a Redis URL.

    Return None for a connection without TLS. Celery's connections use the URL unchanged.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return None
    files = {key: value for key, value in parse_qsl(parts.query) if key.startswith("ssl_")}
    files.pop("ssl_cert_reqs", None)
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **files}


class Restarter:
    """Ends this process when a file that it read at startup changes.

    The process's parent restarts it; no other process needs Flower in the meantime.

    Args:
        files: the paths of the files; empty paths are ignored.
        end: a function that ends the process.
    """

    def __init__(self, files: Iterable[str], end: Callable[[], None]) -> None:
        self._files = [Path(name) for name in files if name]
        self._end = end
        self._known = self._contents()

    def watch(self) -> None:
        """Start a thread that checks the files periodically."""
        Loop("flower-files", self.step).start()

    def step(self) -> float:
        """Check the files once; return the number of seconds until the next check."""
        # If a file is missing, assume that it is just being replaced.
        if any(
            found not in (None, known)
            for found, known in zip(self._contents(), self._known, strict=True)
        ):
            _log.warning("a password, certificate or login has changed; restarting Flower")
            self._end()
        return LOOK_SECONDS

    def _contents(self) -> list[bytes | None]:
        return [hashed(path) for path in self._files]


def hashed(path: Path) -> bytes | None:
    """Return the digest of a file, or None if it is missing."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


def files(settings: Settings) -> list[str]:
    """Return the files that are read at startup and may change."""
    flower, redis = settings.flower, settings.redis
    authority = dict(parse_qsl(urlsplit(redis.url).query)).get("ssl_ca_certs", "")
    return [redis.password_file, authority, *flower.tls, *flower.secret_files]


def check_free(address: str, port: int) -> None:
    """Check that the address is free; otherwise Flower would fail with a traceback.

    Raises:
        ConfigError: the process cannot listen on the address; the exit code is 1.
    """
    try:
        places = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, place in places[:1]:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}:{port}: {error.strerror}. Set a different --flower-port "
            "or --flower-address",
            exit_code=1,
        ) from error


def run(settings: Settings) -> int:
    """Run the command until a signal ends it; return the exit code.

    Raises:
        ConfigError: the process cannot listen on Flower's address.
    """
    check_free(settings.flower.address, settings.flower.port)
    Restarter(files(settings), lambda: os.kill(os.getpid(), signal.SIGTERM)).watch()
    ask_redis(settings)
    fleetweb.install(settings)
    app = make_app(settings)
    app.set_default()
    if options := tls_options(settings.redis.url):
        app.conf.broker_use_ssl = options
    start: Any = app.start  # its type says that it does not return, but it does
    start(["--quiet", "flower", *arguments(settings)])
    return 0
