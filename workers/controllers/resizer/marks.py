"""The reconcile state of a claim: what Redis stores between two reconciles (MR-020).

The state holds only what the claim itself cannot hold (MR-010). If no result is recorded, a call
for the size in `allocatedResources` or the class in `modifyVolumeStatus` may be in flight, as
csi-resizer assumes after a restart (MR-021). So an expansion first clears the last result, and a
successful expansion usually writes no state. A modification writes its state before the call and
keeps it until the call ends, because the claim names the class, but not the parameters of the class
(DR-027).
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

# The same event is not repeated within this time (MR-050).
QUIET_SECONDS: Final = 600.0
_MAX_SAID: Final = 16
# Class parameters whose JSON is larger than this are not stored (DR-027), because the whole state
# is limited to 64 KiB.
_MAX_PARAMETERS: Final = 8192
_NUMBERS: Final = ("exhausted", "digest")
_DEADLINES: Final = ("deadline", "overtaken")


@dataclass(frozen=True, slots=True)
class Call:
    """The last expand or modify call of a claim.

    Attributes:
        target: the size in bytes as a string, or the name of the class.
        result: the result of the call.
        at: the time at which the result was recorded, in seconds, by the queue's clock.
        exhausted: the number of consecutive RESOURCE_EXHAUSTED responses (MR-031).
        parameters: the parameters of the class, kept while the call may be in flight (DR-027).
        deadline: the time by which the call must end; set while the call's outcome is unknown
            (MR-010).
        overtaken: the time by which dead workers' earlier calls for the same target must end.
        digest: a checksum, because the parameters may be too large to store; 0 if unknown.
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
        """The deadlines of calls that may be in flight and have an unknown outcome."""
        return self.deadline, self.overtaken

    def answered(self) -> Self:
        """Return a copy without a deadline, because the call has ended."""
        return replace(self, deadline=NONE)

    def data(self) -> dict[str, Any]:
        """Convert the call to JSON, without empty fields."""
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
        """Parse a call from JSON; return None if the JSON does not have the expected format."""
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
    """The whole reconcile state of one claim.

    Attributes:
        expand, modify: the last call of each kind.
        in_use: whether the driver refused an expansion because the volume was published (R-080).
        said: the digests of a failing claim's events, each with the time of the event.
    """

    expand: Call | None = None
    modify: Call | None = None
    in_use: bool = False
    said: tuple[tuple[int, float], ...] = ()

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Parse a key's reconcile state; unreadable parts are dropped."""
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
        """Convert the state to JSON; the result is {} if the state is empty."""
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
        """Return the last expand call if it was for this size, else None."""
        call = self.expand
        return call if call is not None and call.target == str(size_bytes) else None

    def modification_of(self, class_name: str) -> Call | None:
        """Return the last modify call if it was for this class, else None."""
        call = self.modify
        return call if call is not None and call.target == class_name else None

    def overtaken(self) -> Deadline:
        """Return the deadline of dead workers' modifications that a later call overtook."""
        return self.modify.overtaken if self.modify is not None else NONE

    def has_said(self, reason: str, message: str, now: float) -> bool:
        """Return True if the same event was written within the last `QUIET_SECONDS`."""
        digest = _digest(reason, message)
        return any(one == digest and now - at < QUIET_SECONDS for one, at in self.said)

    def saying(self, reason: str, message: str, now: float) -> Marks:
        """Return the state with this event recorded."""
        digest = _digest(reason, message)
        others = [pair for pair in self.said if pair[0] != digest and now - pair[1] < QUIET_SECONDS]
        return replace(self, said=(*others[-_MAX_SAID + 1 :], (digest, now)))


def digest_of(parameters: Mapping[str, str]) -> int:
    """Return a checksum of the parameters that does not depend on their order."""
    return zlib.crc32(json.dumps(dict(parameters), sort_keys=True).encode())


def _digest(reason: str, message: str) -> int:
    return zlib.crc32(f"{reason}\0{message}".encode())
