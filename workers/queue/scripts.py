"""Runs Lua scripts on Redis, and repairs keys of the wrong type.

All scripts are in one function library, named after its digest. In an installation with Redis
users, the Redis container loads the library (k8s/base/redis/functions.lua). No component is allowed
to load it, because a user that can send its own code could stop Redis for good. In a Redis without
users, the first process that needs the library loads it. Redis versions before 7 have no functions
and are refused.

A declared key of the wrong type (written by hand or by another program) makes a script fail
half-way. The key is then renamed, the whole queue state is dropped as if Redis had lost it, and the
script runs once more. The watcher notices the new epoch and adds everything again. A Celery list of
the wrong type is only deleted, because the sweep sends a new message to its workers.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from workers.errors import QueueUnavailable
from workers.observability.logging import get_logger
from workers.queue import kinds
from workers.queue.connection import (
    NoPermissionError,
    ResponseError,
    redis_errors,
)
from workers.queue.names import USUAL, Names, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis


_log = get_logger(__name__)

_QUARANTINE_SECONDS = 7 * 24 * 3600
_LUA = resources.files("workers.queue") / "lua"
# The number of digits of a 64-bit number; csi-fleet writes no longer numbers.
_LONGEST_NUMBER = 19
# A master that is cut off from its replicas refuses writes with this error code; there may already
# be a new master.
_NO_REPLICAS = "NOREPLICAS"
_TOO_OLD = (
    "redis: this server has no functions. csi-fleet needs Redis 7 or newer, or Valkey. Upgrade the "
    "server (docs/support.md)"
)
_HIDDEN = frozenset({"__pycache__"})
# The shared parts of the library; each part uses only the parts before it.
_SHARED = ("lib", "lib_leases", "lib_taking")
# The number of calls to send together; while they are running, other clients have to wait for a few
# milliseconds.
_TOGETHER = 250
# Scripts that add new work, and the fraction of memory in use (lib.lua) above which they are
# refused. The rest of the memory is for Celery's lists and for the scripts that finish work, so a
# full Redis can drain. A script that writes a record may finish work, so the script itself checks
# whether the record is new.
GROWING = {
    "add": "FULL_SHARE",
    "add_events": "FULL_SHARE",
    "ensure": "FULL_SHARE",
}


def text(value: bytes | str | None) -> str:
    """Return a reply as a string, with invalid UTF-8 escaped; "" for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def whole(value: bytes | str | None) -> int | None:
    """Parse a count or a time in ms that csi-fleet wrote; return None for any other value."""
    digits = value or ""
    is_ours = digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER
    return int(digits) if is_ours else None


@cache
def library(names: Names = USUAL) -> tuple[str, str]:
    """Return the name of the function that runs all scripts, and the library for FUNCTION LOAD.

    The shared parts are evaluated once, when the library is loaded. The library has a second
    function, which also runs when memory is full (see `GROWING`).
    """
    bodies = "".join(
        f"scripts['{name}'] = function()\n{_guarded(name)}end\n" for name in script_names()
    )
    code = (
        f"local ARGV\n{_head(names)}local scripts = {{}}\n{bodies}"
        "local function run(_, args)\nARGV = args\nlocal script = table.remove(ARGV, 1)\n"
        "begin_call()\nreturn scripts[script]()\nend\n"
    )
    # Comments do not count; otherwise, every running Redis would have to load the library again
    # after a reworded comment.
    meaning = re.sub(r"^[ \t]*--.*\n|[ \t]*--.*", "", code, flags=re.MULTILINE)
    name = "csifleet_" + hashlib.sha1(meaning.encode(), usedforsecurity=False).hexdigest()[:16]
    return name, (
        f"#!lua name={name}\n{code}"
        f"redis.register_function('{name}', run)\n"
        f"redis.register_function{{ function_name = '{name}_always', callback = run, "
        "flags = { 'allow-oom' } }\n"
    )


@cache
def script_names() -> tuple[str, ...]:
    """Return the names of all scripts, without the shared parts of the library."""
    found = (path.name.removesuffix(".lua") for path in _LUA.iterdir())
    return tuple(sorted(name for name in found if name not in {*_SHARED, "__init__.py"} | _HIDDEN))


def _head(names: Names) -> str:
    return names.lua_table() + kinds.lua_tables(kinds.KINDS) + "".join(map(_body, _SHARED))


def _guarded(name: str) -> str:
    share = GROWING.get(name)
    guard = f"local full = refused({share})\nif full then return full end\n" if share else ""
    return guard + _body(name)


def _body(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text("utf-8")


class Scripts:
    """Runs scripts on one Redis.

    Args:
        client: the Redis client.
        now_ms: returns the time to use in place of Redis's TIME; used only by tests.
    """

    def __init__(self, client: redis.Redis, now_ms: Callable[[], int] | None = None) -> None:
        self.client = client
        self._names = names_of(client)
        self._now_ms = now_ms

    def run(self, name: str, *args: str | bytes | float) -> Any:
        """Run one script; the time is added as the first argument ("" makes the script ask Redis).

        Raises:
            QueueUnavailable: Redis does not answer, or refuses the call.
        """
        now = self._now()
        with redis_errors():
            try:
                return self._evaluate(name, now, *args)
            except ResponseError as error:
                if str(error).startswith(_NO_REPLICAS):
                    self.client.connection_pool.disconnect(inuse_connections=False)
                if "WRONGTYPE" not in str(error) or not repair(self.client):
                    raise
                return self._evaluate(name, now, *args)

    def new_life(self) -> str:
        """Return a new name for the epoch that the next call may begin."""
        return uuid.uuid4().hex

    def run_each(self, name: str, rows: Sequence[Sequence[str | bytes | float]]) -> list[Any]:
        """Run one script per row of arguments, in few round trips; return the replies in order.

        Use this only for scripts that return the same reply to a repeated call or need no reply.

        Raises:
            QueueUnavailable: Redis does not answer, or refuses a call.
        """
        parts = (rows[start : start + _TOGETHER] for start in range(0, len(rows), _TOGETHER))
        return [reply for part in parts for reply in self._run_together(name, part)]

    def _run_together(self, name: str, rows: Sequence[Sequence[str | bytes | float]]) -> list[Any]:
        if len(rows) == 1:
            return [self.run(name, *rows[0])]
        pipe = self.client.pipeline(transaction=False)
        for row in rows:
            pipe.fcall(self._function(name), 0, name, self._now(), *row)
        with redis_errors():
            replies = pipe.execute(raise_on_error=False)
        # Each failed call is retried alone; this loads the library and repairs keys of the wrong
        # type.
        return [
            self.run(name, *row) if isinstance(reply, Exception) else reply
            for row, reply in zip(rows, replies, strict=True)
        ]

    def _function(self, name: str) -> str:
        return library(self._names)[0] + ("" if name in GROWING else "_always")

    def _now(self) -> str:
        return "" if self._now_ms is None else str(self._now_ms())

    def _evaluate(self, name: str, *args: str | bytes | float) -> Any:
        call: Any = self.client.fcall
        try:
            return call(self._function(name), 0, name, *args)
        except ResponseError as error:
            words = str(error).lower()
            if "unknown command" in words:
                raise QueueUnavailable(_TOO_OLD) from error
            if "function not found" not in words:
                raise
        self._load()
        return call(self._function(name), 0, name, *args)

    def _load(self) -> None:
        """Load the library; a Redis with users refuses this: its container has loaded it."""
        name, code = library(self._names)
        try:
            self.client.function_load(code, replace=True)
        except NoPermissionError as error:
            raise QueueUnavailable(
                f"redis: function library {name} is missing, and this user is not allowed to load "
                "it. Load k8s/base/redis/functions.lua of this release (the Redis container does "
                "this when it starts, docs/upgrade.md)"
            ) from error


@contextmanager
def reading(client: redis.Redis) -> Iterator[None]:
    """Convert the errors of plain commands, and set aside keys of the wrong type.

    Raises:
        QueueUnavailable: Redis does not answer or refuses the command, or a key had the wrong type;
            if called again, the command finds the key absent.
    """
    with redis_errors():
        try:
            yield
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                repair(client)
            raise


def repair(client: redis.Redis) -> bool:
    """Set aside declared keys of the wrong type and drop the queue state; False if there are none.

    Safe to run twice, and in several processes at once. Intents, counters and limits are kept.
    """
    names = names_of(client)
    has_list = _drop_wrong_lists(client, names.celery_lists)
    found = [text(key) for key in client.scan_iter(match=names.prefix + "*", count=500)]
    wrong = [key for key in found if _is_wrong(client, key)]
    for key in wrong:
        aside = names.full("quarantined") + key.removeprefix(names.prefix)
        try:
            client.rename(key, aside)
            client.expire(aside, _QUARANTINE_SECONDS)
        except ResponseError:  # another process was faster
            continue
        _log.error(
            "a Redis key had the wrong type and was renamed; the queue is rebuilt from the API "
            "server. Inspect the renamed key, then delete it",
            redis_key=key,
            set_aside_as=aside,
        )
    if wrong:
        owners = {key: entry.owner for key in found if (entry := names.declared(key)) is not None}
        queue_keys = [key for key in found if owners.get(key) == "queue" and key not in wrong]
        if queue_keys:
            client.delete(*queue_keys)
    return bool(wrong) or has_list


def _drop_wrong_lists(client: redis.Redis, prefix: str) -> bool:
    """Delete Celery lists of the wrong type; not every user is allowed to rename all of them."""
    found = [text(key) for key in client.scan_iter(match=prefix + "*", count=500)]
    wrong = [key for key in found if text(client.type(key)) not in {"list", "none"}]
    for key in wrong:
        with suppress(NoPermissionError):  # a watcher deletes it (celerykeys.py)
            client.delete(key)
            _log.error("deleted a Celery list that had the wrong type", redis_key=key)
    return bool(wrong)


def _is_wrong(client: redis.Redis, key: str) -> bool:
    entry = names_of(client).declared(key)
    if entry is None or entry.name == "quarantined":
        return False
    with suppress(NoPermissionError):  # another driver's key: its worker or a watcher sets it aside
        return text(client.type(key)) not in {entry.type, "none"}
    return False
