"""Faults that an author can inject between the provisioner and a driver or plug-in.

```
create = Faulty(client.create_volume, lose_answers=1)
```
A lost response is the fault that bad drivers fail to handle: the work was done, but the caller sees
a timeout and calls again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


class LostAnswer(Exception):  # noqa: N818 - an injected fault, not an error
    """The call was carried out, but its response was lost."""


@dataclass(slots=True)
class Faulty(Generic[P, R]):
    """A function whose first calls fail; later calls work normally.

    Attributes:
        work: the function to call.
        latency_seconds: the delay before every call.
        errors: the errors that the first calls raise, one error per call; these calls do not
            call `work`.
        lose_answers: the number of calls that raise LostAnswer after `work` has returned; they
            follow the calls that raise `errors`.
        calls: the number of calls so far.
    """

    work: Callable[P, R]
    latency_seconds: float = 0.0
    errors: list[Exception] = field(default_factory=list)
    lose_answers: int = 0
    calls: int = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, and inject the next fault if any is left."""
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
