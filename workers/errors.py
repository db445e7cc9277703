"""Every error the provisioner itself raises, and what each means for the claim or volume.

```
ProvisionerError
  ConfigError          stop at start, one line naming the flag; exit code in `exit_code`
  AttemptError         one attempt failed; `state` says what the storage may be doing
  NamespaceFull        its unfinished attempts have all the bytes that a namespace may have
  RecordTooLarge       its attempt alone has more bytes than one may have
  IgnoredError         not ours: no event, no retry
  TransientError       the system itself is not ready: retried without a back-off step or event
    QueueUnavailable   Redis does not answer
    LeaseLost          another worker owns the volume now: no further write is allowed
    DriverAway         the connection to the driver is gone; the call may or may not have arrived
    CatalogIncomplete  the watcher has not filled the catalog since Redis lost its data
  ApiError             the Kubernetes API refused; subclasses by HTTP status in workers.kube.errors
```
`csi_client.errors.CsiError` has its own root, because csi_client stands alone.
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
        message: the event text, upstream's words.
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
    """No further attempt of this namespace can be recorded; the text is for its users (SEC-4)."""


class RecordTooLarge(ProvisionerError):  # noqa: N818 - as the one above
    """What an attempt needs to be finished after a crash is too much; the text is for its user."""


class IgnoredError(ProvisionerError):
    """The object is somebody else's business: no event, no retry (L-044)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TransientError(ProvisionerError):
    """The system itself is not ready; the key is retried without back-off step or event."""


class QueueUnavailable(TransientError):  # noqa: N818 - the word the whole system uses
    """Redis does not answer."""


class QueueFull(QueueUnavailable):
    """Redis answers, but its memory is used up: nothing new until work has ended."""


class LeaseLost(TransientError):  # noqa: N818 - the word the whole system uses
    """The lease of this volume is gone; the holder must not write any more (G9)."""


class DriverAway(TransientError):  # noqa: N818 - the word the whole system uses
    """The connection to the driver is gone: its keys wait, without event and back-off (S-020)."""


class CatalogIncomplete(TransientError):  # noqa: N818 - the word the whole system uses
    """The watcher has not (re)written the catalog yet, so nothing may be concluded from a gap."""


class ApiError(ProvisionerError):
    """The API server refused a request.

    Args:
        status: HTTP status, 0 when no answer came.
        reason: the Status object's reason, for example `NotFound`.
        message: the Status object's message, as client-go prints it.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
