"""Redis as csi-fleet ships it:

TLS, one ACL user per component, started by the manifests' own script.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from tests.support.processes import Process, free_port, start_process
from tests.support.redis_server import is_as_shipped
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "k8s" / "base" / "redis"
# With sentinels, the servers have one more user.
REPLICATED = ROOT / "k8s" / "components" / "redis-sentinel" / "redis" / "servers.acl"
USERS = ("watcher", "worker", "publisher", "broker", "beat", "flower", "viewer", "operator")
# The user of a worker next to one driver, and the driver's name.
DRIVER = "csi.example.org"
DRIVER_USER = f"worker.{DRIVER}"
DRIVER_BROKER = f"broker.{DRIVER}"
# Celery's connections log in with the component's password.
PASSWORDS = {
    "publisher": "watcher",
    "broker": "worker",
    "viewer": "flower",
    DRIVER_BROKER: DRIVER_USER,
}
# Not shipped: a user that may read the list of refusals and test the permissions of other users.
TESTER = "user tester on >tester ~* &* +@all\n"


@dataclass(slots=True)
class SecureRedis:
    """One server on a free loopback port with the shipped configuration; its files are in
    `directory`."""

    binary: str
    directory: Path
    port: int = field(default_factory=free_port)
    process: Process | None = None

    @property
    def secrets(self) -> Path:
        """Return the folder that make-secrets.sh created."""
        return self.directory / "secrets"

    @property
    def url(self) -> str:
        """Return the URL for `--redis-url`, without a login."""
        return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.secrets / 'ca.crt'}"

    def start(self) -> SecureRedis:
        """Create the secrets, adapt the paths in the shipped files, and start; needs Redis 7."""
        if not is_as_shipped(self.binary):
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs Redis 7")
        self.directory.mkdir(exist_ok=True)
        subprocess.run(
            ["sh", ROOT / "k8s/make-secrets.sh", self.secrets, "", f"{DRIVER}=drivers"], check=True
        )
        (self.secrets / "tester").write_text("tester")
        config, data = self.directory / "config", self.directory / "data"
        shutil.copytree(CONFIG, config, dirs_exist_ok=True)
        data.mkdir(exist_ok=True)
        with (config / "users.acl").open("a") as acl:
            acl.write(REPLICATED.read_text() + TESTER)
        text = (config / "redis.conf").read_text()
        text = text.replace("/run/csi-fleet/redis-tls", str(self.secrets))
        (config / "redis.conf").write_text(text.replace("/data", str(data)))
        return self.serve()

    def serve(self) -> SecureRedis:
        """Start with the existing files; after `stop`, also with the existing data."""
        config = self.directory / "config"
        self.process = start_process(
            "redis",
            [
                *("sh", config / "start-redis.sh", config, self.secrets),
                *("--bind", "127.0.0.1", "--tls-port", str(self.port)),
            ],
            log=self.directory / "redis.log",
            env={**os.environ, "PATH": f"{Path(self.binary).parent}:{os.environ['PATH']}"},
        )
        wait_until(self._answers, 15, f"redis answers: {self.directory / 'redis.log'}")
        return self

    def stop(self) -> None:
        """Stop the server; safe to repeat."""
        if self.process is not None:
            self.process.stop()

    def password(self, user: str) -> str:
        """Return the password that make-secrets.sh created for a user."""
        return (self.secrets / PASSWORDS.get(user, user)).read_text().strip()

    def client(self, user: str) -> redis.Redis:
        """Return a plain client that is logged in as one of the users."""
        return redis.Redis.from_url(
            self.url, username=user, password=self.password(user), socket_timeout=5
        )

    def login(self, user: str) -> list[str]:
        """Return the flags with which a component logs in as `user`."""
        return [
            f"--redis-url={self.url}",
            f"--redis-username={user}",
            f"--redis-password-file={self.secrets / user}",
            *([f"--records-key-file={self.secrets / 'records-key'}"] if user == "worker" else ()),
        ]

    def denials(self) -> list[str]:
        """Return what the ACL has refused so far: `user: reason object`."""
        with self.client("tester") as client:
            entries = client.acl_log()
        return [
            f"{entry['username']}: {entry['reason']} {entry['object']} in {entry['context']}"
            for entry in entries
            # redis-py sends its name on each connection and ignores a refusal. In Redis 7.0, an ACL
            # file that names this subcommand cannot be loaded.
            if entry["object"] != "client|setinfo"
        ]

    def _answers(self) -> bool:
        with self.client("tester") as client:
            try:
                # The functions are loaded a moment after the server has started.
                return bool(client.ping() and client.function_list())
            except redis.RedisError:
                return False
