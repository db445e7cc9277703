"""How does a Lua script reach Redis?

Scripts are sent by digest and loaded when Redis does not know them (after a restart). A key of ours
with a wrong type (an operator's hand, another program) stops a script half-way; then the key is set
aside under a name of its own, the whole queue state is dropped as if Redis had lost it, and the
script runs once more. The watcher notices the changed epoch and adds everything again.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from workers.queue import kinds, names
from workers.queue.connection import NoScriptError, ResponseError, redis_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis

_log = logging.getLogger(__name__)

_QUARANTINE_SECONDS = 7 * 24 * 3600
_LUA = resources.files("workers.queue") / "lua"


def text(value: bytes | str | None) -> str:
    """A reply as text; broken UTF-8 is shown, not raised."""
    if value is None:
        return ""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


@cache
def source(name: str) -> tuple[str, str]:
    """Digest and text of one script, with names, kinds and shared functions in front."""
    body = (_LUA / f"{name}.lua").read_text("utf-8")
    library = (_LUA / "lib.lua").read_text("utf-8")
    script = names.lua_table() + kinds.lua_tables(kinds.KINDS) + library + body
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest(), script


class Scripts:
    """Runs scripts on one Redis.

    Args:
        client: the Redis client.
        now_ms: tests only; gives the time in place of Redis TIME.
    """

    def __init__(self, client: redis.Redis, now_ms: Callable[[], int] | None = None) -> None:
        self.client = client
        self._now_ms = now_ms

    def run(self, name: str, *args: str | bytes | float) -> Any:
        """Run one script; the first argument it sees is the time ("" = ask Redis).

        Raises:
            QueueUnavailable: Redis does not answer or refuses.
        """
        now = self._now()
        with redis_errors():
            try:
                return self._evaluate(name, now, *args)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error) or not repair(self.client):
                    raise
                return self._evaluate(name, now, *args)

    def run_each(self, name: str, rows: Sequence[Sequence[str | bytes | float]]) -> list[Any]:
        """Run one script once per row of arguments, in one round trip; the replies in order.

        Only for scripts that give the same answer when they are repeated.

        Raises:
            QueueUnavailable: Redis does not answer or refuses.
        """
        if len(rows) == 1:
            return [self.run(name, *rows[0])]
        digest, _ = source(name)
        pipe = self.client.pipeline(transaction=False)
        for row in rows:
            pipe.evalsha(digest, 0, self._now(), *row)
        with redis_errors():
            replies = pipe.execute(raise_on_error=False)
        # One that failed is run again by itself, which loads the script and repairs wrong types.
        return [
            self.run(name, *row) if isinstance(reply, Exception) else reply
            for row, reply in zip(rows, replies, strict=True)
        ]

    def _now(self) -> str:
        return "" if self._now_ms is None else str(self._now_ms())

    def _evaluate(self, name: str, *args: str | bytes | float) -> Any:
        digest, script = source(name)
        try:
            return self.client.evalsha(digest, 0, *args)
        except NoScriptError:
            return self.client.eval(script, 0, *args)


@contextmanager
def repaired(client: redis.Redis) -> Iterator[None]:
    """Set wrong-typed keys aside when a plain command meets one.

    Raises:
        QueueUnavailable: this once; the repeated call finds the key absent.
    """
    try:
        yield
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            repair(client)
        raise


def repair(client: redis.Redis) -> bool:
    """Set wrong-typed keys of ours aside and drop the queue state; False when all types fit.

    Safe to run twice and by several processes at once. Intents, counters and limits stay.
    """
    found = [text(key) for key in client.scan_iter(match=names.PREFIX + "*", count=500)]
    wrong = [key for key in found if _is_wrong(client, key)]
    for key in wrong:
        aside = names.NAMES["quarantined"].full + key.removeprefix(names.PREFIX)
        try:
            client.rename(key, aside)
            client.expire(aside, _QUARANTINE_SECONDS)
        except ResponseError:  # another process was faster
            continue
        _log.error(
            "Redis key has a wrong type and was set aside; the queue is rebuilt from the API "
            "server. Look at the value, then delete it",
            extra={"redis_key": key, "set_aside_as": aside},
        )
    if wrong:
        queue_keys = [key for key in found if _owner(key) == "queue" and key not in wrong]
        if queue_keys:
            client.delete(*queue_keys)
    return bool(wrong)


def _owner(key: str) -> str:
    entry = names.declared(key)
    return "" if entry is None else entry.owner


def _is_wrong(client: redis.Redis, key: str) -> bool:
    entry = names.declared(key)
    if entry is None or entry.owner == "quarantine":
        return False
    return text(client.type(key)) not in {entry.type, "none"}
