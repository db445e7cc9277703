"""All errors that csi-fleet itself raises, and what each means for the object being processed.

```
ProvisionerError
  ConfigError          stop at startup; one line names the flag; exit code in `exit_code`
  AttemptError         one attempt failed; `state` is what the storage system may be doing
  NamespaceFull        the namespace's open attempts have used up its quota of bytes in Redis
  RecordTooLarge       the intent or the mark of one object is larger than allowed
  IgnoredError         another program handles the object: no event, no retry
  TransientError       csi-fleet itself is not ready: retried without a back-off step or an event
    QueueUnavailable   Redis does not answer
    LeaseLost          another worker may own the volume now: no further write is allowed
    DriverAway         the connection to the driver is lost; the call may have reached the driver
    CatalogIncomplete  the watcher has not refilled the shared cache since Redis lost its data
  ApiError             the API server refused a request; subclasses by status in workers.kube.errors
```
`csi_client.errors.CsiError` has its own base class, because csi_client imports no other package.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What is known about the volume in the storage system after an attempt (P-400, L-050)."""

    FINISHED = "finished"
    BACKGROUND = "background"
    NO_CHANGE = "no-change"
    RESCHEDULE = "reschedule"


class ProvisionerError(Exception):
    """Base class of all errors of this package."""


class ConfigError(ProvisionerError):
    """A flag, file or environment variable is unusable; the message names it and the remedy."""

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class AttemptError(ProvisionerError):
    """One attempt to provision or delete failed.

    Args:
        message: the message of the event, the same as upstream's.
        state: what the storage system may be doing now; it decides whether the attempt is retried
            and whether the record of the attempt is kept.
        code: the gRPC status code if the driver returned a raw status, otherwise None.
            INVALID_ARGUMENT (3) marks the claim for slow retries (P-414).
    """

    def __init__(self, message: str, state: State, *, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.code = code


class NamespaceFull(ProvisionerError):  # noqa: N818 - the word the whole system uses
    """No further attempt can be recorded for this namespace; users see the error message."""


class RecordTooLarge(ProvisionerError):  # noqa: N818 - as NamespaceFull
    """The intent or mark needed to continue an attempt after a crash is too large to store.

    Users see the error message.
    """


class IgnoredError(ProvisionerError):
    """Another program handles the object: no event, no retry (L-044)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransientError(ProvisionerError):
    """csi-fleet itself is not ready; the key is retried without a back-off step or an event."""


class QueueUnavailable(TransientError):  # noqa: N818 - the word the whole system uses
    """Redis does not answer."""


class QueueFull(QueueUnavailable):
    """Redis answers, but its memory is full: nothing new can start until other work has ended."""


class LeaseLost(TransientError):  # noqa: N818 - the word the whole system uses
    """The lease on this volume is lost; its former holder must not write again (G9)."""


class DriverAway(TransientError):  # noqa: N818 - the word the whole system uses
    """The driver is disconnected; the driver's keys wait without events or back-off (S-020)."""


class CatalogIncomplete(TransientError):  # noqa: N818 - the word the whole system uses
    """The watcher has not filled the shared cache yet, so a missing entry means nothing."""


class ApiError(ProvisionerError):
    """The API server refused a request.

    Args:
        status: the HTTP status; 0 if there was no response.
        reason: the Status object's reason, for example `NotFound`.
        message: the Status object's message, as client-go prints it.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
