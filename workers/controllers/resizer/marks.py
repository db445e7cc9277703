"""What is remembered of a claim between two reconciles (MR-020), and how it is spelled in Redis?

Only what the claim itself cannot say (MR-010). Without a mark a call for the size in
`allocatedResources` or the class in `modifyVolumeStatus` counts as one that may still run, as after
a restart of the reference (MR-021). So what an earlier expansion came to is taken back before the
next one, and no mark is written on the way of one that simply succeeds. A modification has one from
before its call to its end: the claim names the class, but not its parameters (DR-027).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from workers.controllers.resizer.results import Result
from workers.deadlines import NONE, Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

# MR-050: an unchanged event is not repeated within this time.
QUIET_SECONDS: Final = 600.0
_MAX_SAID: Final = 16
# Parameters of a class that are larger as JSON are not kept (DR-027); a mark has 64 KiB.
_MAX_PARAMETERS: Final = 8192
_NUMBERS: Final = ("exhausted", "digest")
_DEADLINES: Final = ("deadline", "overtaken")


@dataclass(frozen=True, slots=True)
class Call:
    """The last call of one kind.

    Attributes:
        target: bytes as text, or the name of the class.
        result: what became of it.
        at: when it ended, seconds of the queue's clock.
        exhausted: how often in a row it ended with RESOURCE_EXHAUSTED (MR-031).
        parameters: of the class, while the call may run (DR-027).
        deadline: of a call whose end nobody saw yet (MR-010).
        overtaken: of calls of dead workers for the same target.
        digest: of the parameters, which may be too large to be kept; 0 is unknown.
    """

    target: str
    result: Result
    at: float
    exhausted: int = 0
    parameters: Mapping[str, str] | None = None
    deadline: Deadline = NONE
    overtaken: Deadline = NONE
    digest: int = 0

    @property
    def deadlines(self) -> tuple[Deadline, Deadline]:
        """Of calls that may run and whose end nobody saw."""
        return self.deadline, self.overtaken

    def answered(self) -> Self:
        """The same after the end of its call: nobody has to wait for its deadline."""
        return replace(self, deadline=NONE)

    def data(self) -> dict[str, Any]:
        """JSON of it, without what is empty."""
        found: dict[str, Any] = {"target": self.target, "result": str(self.result), "at": self.at}
        for name in _NUMBERS:
            if value := getattr(self, name):
                found[name] = value
        for name in _DEADLINES:
            if value := getattr(self, name):
                found[name] = value.data()
        parameters = None if self.parameters is None else dict(self.parameters)
        if parameters is not None and len(json.dumps(parameters)) <= _MAX_PARAMETERS:
            found["parameters"] = parameters
        return found

    @classmethod
    def parse(cls, data: Any) -> Self | None:
        """Read JSON back; whatever is not one of ours is nothing."""
        try:
            parameters = data.get("parameters")
            return cls(
                target=str(data["target"]),
                result=Result(data["result"]),
                at=float(data["at"]),
                exhausted=int(data.get("exhausted", 0)),
                parameters=None
                if parameters is None
                else {str(key): str(value) for key, value in parameters.items()},
                deadline=Deadline.read(data.get("deadline")),
                overtaken=Deadline.read(data.get("overtaken")),
                digest=int(data.get("digest", 0)),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Marks:
    """All of one claim.

    Attributes:
        expand, modify: the last call of each kind.
        in_use: the driver refused an expansion because the volume is published (R-080).
        said: digests of the events of a failing claim, with the time of each.
    """

    expand: Call | None = None
    modify: Call | None = None
    in_use: bool = False
    said: tuple[tuple[int, float], ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Read a key's mark; unknown parts are nothing."""
        said = data.get("said")
        try:
            pairs = tuple((int(digest), float(at)) for digest, at in said or ())
        except (TypeError, ValueError):
            pairs = ()
        return cls(
            expand=Call.parse(data.get("expand")),
            modify=Call.parse(data.get("modify")),
            in_use=bool(data.get("in_use")),
            said=pairs,
        )

    def data(self) -> dict[str, Any]:
        """JSON of it; {} when nothing is remembered."""
        found: dict[str, Any] = {}
        for name, call in (("expand", self.expand), ("modify", self.modify)):
            if call is not None:
                found[name] = call.data()
        if self.in_use:
            found["in_use"] = True
        if self.said:
            found["said"] = [list(pair) for pair in self.said]
        return found

    def expansion_of(self, size_bytes: int | None) -> Call | None:
        """The last expand call if it was for that size."""
        call = self.expand
        return call if call is not None and call.target == str(size_bytes) else None

    def modification_of(self, class_name: str) -> Call | None:
        """The last modify call if it was for that class."""
        call = self.modify
        return call if call is not None and call.target == class_name else None

    def overtaken(self) -> Deadline:
        """When a modification of a dead worker that was overtaken has surely ended."""
        return self.modify.overtaken if self.modify is not None else NONE

    def has_said(self, reason: str, message: str, now: float) -> bool:
        """Whether this event was written lately."""
        digest = _digest(reason, message)
        return any(one == digest and now - at < QUIET_SECONDS for one, at in self.said)

    def saying(self, reason: str, message: str, now: float) -> Marks:
        """The marks with this event remembered."""
        digest = _digest(reason, message)
        others = [pair for pair in self.said if pair[0] != digest and now - pair[1] < QUIET_SECONDS]
        return replace(self, said=(*others[-_MAX_SAID + 1 :], (digest, now)))


def digest_of(parameters: Mapping[str, str]) -> int:
    """The same for the same parameters, and hardly ever for others."""
    return zlib.crc32(json.dumps(dict(parameters), sort_keys=True).encode())


def _digest(reason: str, message: str) -> int:
    return zlib.crc32(f"{reason}\0{message}".encode())
