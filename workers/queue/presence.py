"""Records which watchers are alive, whether beat is alive, and what stops processes from working.

Each watcher announces itself every few seconds. Beat is not allowed to write here, so the worker
that gets beat's tick announces beat. The records are only for users: no decision depends on them.
Workers need no entry, because they are registered in `procs`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from workers.queue.clock import read_clock
from workers.queue.names import redis_key
from workers.queue.scripts import reading, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis

TTL_SECONDS = 15.0
_PARTS = 3
MAX_TROUBLE = 1000
BEAT = "beat"


def _text(name: Any) -> str:
    return text(name)


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One process that is alive."""

    role: str
    host: str
    pid: str


class Presence:
    """The list of processes that are alive. Methods may raise QueueUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._name = redis_key(client, "presence")
        self._procs = redis_key(client, "procs")

    def announce(self, role: str) -> None:
        """Record that this process is alive as `role` for the next 15 s."""
        self._add(role, socket.gethostname(), str(os.getpid()))

    def ticked(self) -> None:
        """Record that some beat process is alive, because a tick has arrived.

        A tick does not show which process sent it.
        """
        self._add(BEAT, "-", "-")

    def _add(self, role: str, host: str, pid: str) -> None:
        host = "".join(host.split())
        with reading(self._client):
            now = self._now()
            pipe = self._client.pipeline(transaction=False)
            pipe.zremrangebyscore(self._name, "-inf", now)
            pipe.zadd(
                self._name,
                {f"{role} {host} {pid}": now + TTL_SECONDS},
            )
            pipe.execute()

    def complain(self, role: str, troubles: Iterable[str]) -> None:
        """Record, for the next 15 s, what prevents this process from working."""
        # An entry for a problem has four parts, so that older releases, which do not know such
        # entries, do not mistake it for a process.
        marks = [f"! {role} {os.getpid()} {quote(one[:MAX_TROUBLE])}" for one in troubles]
        if marks:
            with reading(self._client):
                until = self._now() + TTL_SECONDS
                self._client.zadd(self._name, dict.fromkeys(marks, until))

    def troubles(self) -> list[str]:
        """Return the problems that processes have recorded in the last 15 s, without duplicates."""
        with reading(self._client):
            names = self._client.zrangebyscore(self._name, self._now(), "+inf")
        parts = [_text(name).split(" ") for name in names]
        found = [part for part in parts if part[0] == "!" and len(part) == _PARTS + 1]
        return sorted({f"{part[1]}: {unquote(part[3])}" for part in found})

    def alive(self) -> list[Process]:
        """Return the watchers that are alive."""
        return [one for one in self._all() if one.role != BEAT]

    def has_beat(self) -> bool:
        """Return True if a tick from beat has arrived within the last 15 s."""
        return any(one.role == BEAT for one in self._all())

    def _all(self) -> list[Process]:
        with reading(self._client):
            names = self._client.zrangebyscore(self._name, self._now(), "+inf")
        parts = [_text(name).split(" ") for name in names]
        return sorted(Process(*part) for part in parts if len(part) == _PARTS)

    def workers(self) -> list[Process]:
        """Return the worker processes that are alive, from their registration in the queue."""
        with reading(self._client):
            now = self._now() * 1000
            names = self._client.zrangebyscore(self._procs, now, "+inf")
        parts = [_text(name).split(":") for name in names]
        return sorted(Process("worker", part[0], part[1] if part[1:] else "") for part in parts)

    def _now(self) -> float:
        return read_clock(self._client).now_ms / 1000
