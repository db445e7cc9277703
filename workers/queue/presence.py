"""Which watchers are alive, is a beat, and what keeps them from their work?

Each watcher says so every few seconds, and the worker that gets beat's tick says so of beat, which
may write nothing here. It is for people only: no decision rests on it. Workers need no entry: they
are the processes of `procs`.
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
    """One living process."""

    role: str
    host: str
    pid: str


class Presence:
    """The list of living processes. Methods raise QueueUnavailable."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._name = redis_key(client, "presence")
        self._procs = redis_key(client, "procs")

    def announce(self, role: str) -> None:
        """Say that this process lives as `role` for the next 15 s."""
        self._add(role, socket.gethostname(), str(os.getpid()))

    def ticked(self) -> None:
        """Say that a beat lives: its tick came. The message does not say from which process."""
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
        """Say for the next 15 s what keeps this process from its work."""
        # Four parts: releases that know of no troubles take them for no process.
        marks = [f"! {role} {os.getpid()} {quote(one[:MAX_TROUBLE])}" for one in troubles]
        if marks:
            with reading(self._client):
                until = self._now() + TTL_SECONDS
                self._client.zadd(self._name, dict.fromkeys(marks, until))

    def troubles(self) -> list[str]:
        """What living processes complain of, each once."""
        with reading(self._client):
            names = self._client.zrangebyscore(self._name, self._now(), "+inf")
        parts = [_text(name).split(" ") for name in names]
        found = [part for part in parts if part[0] == "!" and len(part) == _PARTS + 1]
        return sorted({f"{part[1]}: {unquote(part[3])}" for part in found})

    def alive(self) -> list[Process]:
        """The living watchers."""
        return [one for one in self._all() if one.role != BEAT]

    def has_beat(self) -> bool:
        """Whether a tick of beat came within 15 s."""
        return any(one.role == BEAT for one in self._all())

    def _all(self) -> list[Process]:
        with reading(self._client):
            names = self._client.zrangebyscore(self._name, self._now(), "+inf")
        parts = [_text(name).split(" ") for name in names]
        return sorted(Process(*part) for part in parts if len(part) == _PARTS)

    def workers(self) -> list[Process]:
        """The living worker processes, from their registration in the queue."""
        with reading(self._client):
            now = self._now() * 1000
            names = self._client.zrangebyscore(self._procs, now, "+inf")
        parts = [_text(name).split(":") for name in names]
        return sorted(Process("worker", part[0], part[1] if part[1:] else "") for part in parts)

    def _now(self) -> float:
        return read_clock(self._client).now_ms / 1000
