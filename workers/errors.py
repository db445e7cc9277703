"""All errors that csi-fleet raises itself, and what each means for the object.

```
ProvisionerError
  ConfigError          stop at startup, one line naming the flag; exit code in `exit_code`
  AttemptError         one attempt failed; `state` says what the storage may be doing
  NamespaceFull        open attempts of the namespace use all bytes that Redis may hold for it
  RecordTooLarge       the intent of one attempt is larger than allowed
  IgnoredError         another program handles the object: no event, no retry
  TransientError       the system itself is not ready: retried without a back-off step or event
    QueueUnavailable   Redis does not answer
    LeaseLost          another worker may own the volume now: no further write is allowed
    DriverAway         the connection to the driver is lost; the call may have arrived
    CatalogIncomplete  the watcher has not refilled the shared cache since Redis lost its data
  ApiError             the Kubernetes API refused; subclasses by HTTP status in workers.kube.errors
```
`csi_client.errors.CsiError` has its own root, because csi_client imports no other package.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """What is known about the storage after one attempt (rule P-400, L-050)."""

    FINISHED = "finished"
    BACKGROUND = "background"
    NO_CHANGE = "no-change"
    RESCHEDULE = "reschedule"


class ProvisionerError(Exception):
    """Root of all errors of this package."""


class ConfigError(ProvisionerError):
    """A flag, file or environment variable is unusable; the text names it and the remedy."""

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class AttemptError(ProvisionerError):
    """One provisioning or deletion attempt failed.

    Args:
        message: text of the event, as upstream's.
        state: what the storage may be doing now; decides retry and the in-progress record.
        code: gRPC status number if the driver answered with a raw status, else None.
            INVALID_ARGUMENT (3) marks the claim for slow retry (P-414).
    """

    def __init__(self, message: str, state: State, *, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.code = code


class NamespaceFull(ProvisionerError):  # noqa: N818 - the word the whole system uses
    """No further attempt of this namespace can be recorded; its users see the text."""


class RecordTooLarge(ProvisionerError):  # noqa: N818 - as NamespaceFull
    """The intent, needed to finish an attempt after a crash, is too large; users see the text."""


class IgnoredError(ProvisionerError):
    """Another program handles the object: no event, no retry (L-044)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransientError(ProvisionerError):
    """The system itself is not ready; the key is retried without back-off step or event."""


class QueueUnavailable(TransientError):  # noqa: N818 - the word the whole system uses
    """Redis does not answer."""


class QueueFull(QueueUnavailable):
    """Redis answers, but its memory is full: nothing new can start until other work has ended."""


class LeaseLost(TransientError):  # noqa: N818 - the word the whole system uses
    """The lease of this volume is lost; the holder must no longer write (G9)."""


class DriverAway(TransientError):  # noqa: N818 - the word the whole system uses
    """The connection to the driver is lost: its keys wait, without event and back-off (S-020)."""


class CatalogIncomplete(TransientError):  # noqa: N818 - the word the whole system uses
    """The watcher has not filled the shared cache yet, so a missing entry means nothing."""


class ApiError(ProvisionerError):
    """The API server refused a request.

    Args:
        status: HTTP status, 0 if there was no answer.
        reason: the Status object's reason, for example `NotFound`.
        message: the Status object's message, as client-go prints it.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
