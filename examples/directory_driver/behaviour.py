"""Makes the driver misbehave as a JSON file says, which is read again on every call.

```
{"generation": "any text; a new one restarts the counters",
 "rules": [{"method": "CreateVolume",        shell pattern, default *
            "match": "pvc-12*",              shell pattern on the volume's name or id, or on one of
                                             the request's parameters (key=value), default *
            "times": 3,                      only the first n calls that match; default all
            "delay_seconds": 2 or [1, 5],    fixed, or random between two, before the work
            "gives_up": true,                if the client gives up, end the delay without the work
            "code": "UNAVAILABLE",           fail with this status, without doing the work ...
            "message": "text",
            "after_work": true,              ... or after it: the answer is lost
            "hang": true,                    do nothing until the client gives up (after_work too)
            "skip_work": true,               do not do the work (with an answer of your own)
            "answer": {...},                 replace the answer: JSON of the response message
            "answer_base64": "...",          replace the answer's bytes
            "abort_pending": true}],         ABORTED while a call for the same volume is running
 "capacity": {"total_bytes": n, "maximum_volume_size": n, "segments": {"zone=z1": n}}}
```
Only the first matching rule is used. Calls are counted in `<file>.counts`, so that "the first 3
calls" also works after a SIGKILL of the driver.
"""

from __future__ import annotations

import fnmatch
import json
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for calls; the default changes nothing."""

    method: str = "*"
    match: str = "*"
    times: int | None = None
    delay_seconds: float | tuple[float, float] = 0.0
    code: str = ""
    message: str = "told to fail"
    after_work: bool = False
    hang: bool = False
    skip_work: bool = False
    answer: dict[str, Any] | None = None
    answer_base64: str | None = None
    abort_pending: bool = False
    gives_up: bool = False

    def applies(self, method: str, subject: str) -> bool:
        """Return True if the rule matches this call, ignoring counters."""
        return fnmatch.fnmatchcase(method, self.method) and fnmatch.fnmatchcase(subject, self.match)

    def delay(self) -> float:
        """Return this call's delay in seconds."""
        if isinstance(self.delay_seconds, (int, float)):
            return self.delay_seconds
        low, high = self.delay_seconds
        return random.uniform(low, high)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Size of the storage in bytes, in total and by segment (`key=value`)."""

    total_bytes: int = 2**40
    maximum_volume_size: int = 0
    segments: dict[str, int] = field(default_factory=dict)


class Control:
    """Reads the control file. A missing or half-written file means no misbehaviour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts_path = path.with_name(path.name + ".counts")
        self._lock = threading.Lock()

    def rule_for(self, method: str, subjects: tuple[str, ...]) -> Rule:
        """Return the rule for a call on the volume with these names and ids, and count the call."""
        content = self._read(self._path)
        with self._lock:
            generation = str(content.get("generation", ""))
            counts = self._read(self._counts_path)
            if counts.get("generation") != generation:
                counts = {"generation": generation}
            for index, body in enumerate(content.get("rules", [])):
                rule = Rule(**body)
                if not any(rule.applies(method, subject) for subject in subjects or ("",)):
                    continue
                if rule.times is None:
                    return rule
                used = int(counts.get(str(index), 0))
                if used < rule.times:
                    self._save_counts(counts | {str(index): used + 1})
                    return rule
        return Rule()

    def capacity(self) -> Capacity:
        """Return the current sizes."""
        return Capacity(**self._read(self._path).get("capacity", {}))

    def _save_counts(self, counts: dict[str, Any]) -> None:
        draft = self._counts_path.with_suffix(".draft")
        draft.write_text(json.dumps(counts))
        draft.replace(self._counts_path)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}
