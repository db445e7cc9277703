"""Faults an author can put between the provisioner and a driver or plug-in.

```
create = Faulty(client.create_volume, lose_answers=1)
```
A lost answer is the fault that tells good drivers from bad: the work was done, the caller learns
of a time-out and asks again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


class LostAnswer(Exception):  # noqa: N818 - what the caller sees of a fault
    """The call was made and done, its answer did not arrive."""


@dataclass(slots=True)
class Faulty(Generic[P, R]):
    """A function with faults in front of it; then it works as it is.

    Attributes:
        work: the function.
        latency_seconds: added before every call.
        errors: raised by the first calls, one each, instead of the work.
        lose_answers: after the errors, as many calls do the work and raise LostAnswer.
        calls: how often it was called.
    """

    work: Callable[P, R]
    latency_seconds: float = 0.0
    errors: list[Exception] = field(default_factory=list)
    lose_answers: int = 0
    calls: int = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call with the next fault."""
        self.calls += 1
        if self.latency_seconds:
            time.sleep(self.latency_seconds)
        if self.errors:
            raise self.errors.pop(0)
        answer = self.work(*args, **kwargs)
        if self.lose_answers > 0:
            self.lose_answers -= 1
            raise LostAnswer
        return answer
