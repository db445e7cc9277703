"""Records all calls, their times, and which calls for one volume ran at the same time.

Each call has two JSON lines, `start` and `end`. A line is appended with one write, so a SIGKILL
leaves whole lines; a start without an end means that the process died during the call. `overlaps`
names the calls for the same volume that were running when the call arrived; of those, `waited_for`
names the calls whose client was still waiting, which is a mistake of the caller.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Running:
    """One running call; `is_awaited` returns True if its client still waits."""

    call: str
    method: str
    volumes: frozenset[str]
    is_awaited: Callable[[], bool]


class Journal:
    """Appends to one file. Thread-safe."""

    def __init__(self, path: Path, *, with_digests: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._with_digests = with_digests
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._count = 0
        # Not the process id, which is 1 in every container.
        self._process = uuid.uuid4().hex[:8]

    def start(
        self,
        method: str,
        volumes: Iterable[str],
        request: Mapping[str, Any],
        secrets: Mapping[str, str],
        is_awaited: Callable[[], bool],
    ) -> tuple[Running, list[Running]]:
        """Record the start of a call; returns it and the running calls for the same volume.

        `request` must be redacted. Of `secrets` only their presence is recorded, and with
        `with_digests` a SHA-256 of their sorted JSON, to compare them without showing them.
        """
        with self._lock:
            self._count += 1
            identity = f"{self._process}-{self._count}"
            running = Running(identity, method, frozenset(volumes), is_awaited)
            others = [o for o in self._running.values() if o.volumes & running.volumes]
            self._running[identity] = running
            record: dict[str, Any] = {
                "event": "start",
                "call": identity,
                "method": method,
                "time": time.time(),
                "volumes": sorted(running.volumes),
                "request": request,
                "secrets_arrived": bool(secrets),
                "overlaps": [
                    {"call": o.call, "method": o.method, "waited_for": o.is_awaited()}
                    for o in others
                ],
            }
            if self._with_digests and secrets:
                text = json.dumps(dict(secrets), sort_keys=True)
                record["secrets_sha256"] = hashlib.sha256(text.encode()).hexdigest()
            self._append(record)
        return running, others

    def end(self, running: Running, code: str, message: str, answer: Mapping[str, Any]) -> None:
        """Record how a call ended."""
        with self._lock:
            del self._running[running.call]
            self._append(
                {
                    "event": "end",
                    "call": running.call,
                    "method": running.method,
                    "time": time.time(),
                    "code": code,
                    "message": message,
                    "answer": answer,
                    "client_waits": running.is_awaited(),
                }
            )

    def _append(self, record: Mapping[str, Any]) -> None:
        os.write(self._file, json.dumps(record, sort_keys=True).encode() + b"\n")
