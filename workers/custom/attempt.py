"""Makes one attempt with a plug-in, from the options to the complete PV (L-040 steps 6 to 9)."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from workers.controllers.provisioner.intent import Request
from workers.controllers.provisioner.recorded import RecordedAttempt
from workers.controllers.provisioner.safekeeping import SLOW_AFTER_SECONDS
from workers.custom.api import Ignored, ProvisionError, ProvisionOptions, ProvisionResult
from workers.errors import AttemptError, IgnoredError, State
from workers.observability.logging import get_logger
from workers.translate import claims
from workers.translate.fields import optional_text, text_list
from workers.translate.names import volume_name
from workers.translate.volume import complete_volume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.custom.api import Provisioner
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)

_DEFAULTS: Final = {"apiVersion": "v1", "kind": "PersistentVolume"}


@dataclass(slots=True)
class CustomAttempt(RecordedAttempt[ProvisionOptions, ProvisionResult]):
    """One call of `provision`, made under the lease of its volume."""

    provisioner: Provisioner
    add_finalizer: bool

    def prepare(self) -> ProvisionOptions:
        """Build the options from copies, so that a plug-in cannot change the engine's objects."""
        settings = self.work.driver.settings.provision
        name = self.work.recorded_name or volume_name(
            settings.volume_name_prefix,
            settings.volume_name_uuid_length,
            self.claim["metadata"].get("uid") or "",
        )
        return ProvisionOptions(
            storage_class=deepcopy(self.storage_class),
            pv_name=name,
            claim=deepcopy(self.claim),
            selected_node=claims.selected_node(self.claim) or None,
        )

    def request_of(self, prepared: ProvisionOptions) -> Request:
        """Return the description of the call for the intent.

        The call has no deadline, and ends when the process ends.
        """
        return Request(selected_node=prepared.selected_node or "")

    def call(self, prepared: ProvisionOptions) -> ProvisionResult:
        """Call `provision` and classify its exceptions (L-101).

        An unexpected exception counts as BACKGROUND, because it leaves the state of the storage
        system unknown.
        """
        with self.copied_when_slow():
            try:
                result = self.provisioner.provision(prepared)
            except Ignored as ignored:
                raise IgnoredError(ignored.reason) from None
            except ProvisionError as error:
                # The author's subclass may have given these attributes the wrong types, or not set
                # them at all.
                state = getattr(error, "state", None)
                state = state if isinstance(state, State) else State.BACKGROUND
                code = getattr(error, "code", None)
                raise AttemptError(describe(error), state, code=code) from None
            except Exception as error:
                _log.exception("the custom provisioner raised an unexpected error")
                raise AttemptError(describe(error), State.BACKGROUND) from error
        if not isinstance(result, ProvisionResult):
            raise AttemptError(
                f"provision returned {type(result).__name__}, not ProvisionResult", State.BACKGROUND
            )
        return result

    @contextmanager
    def copied_when_slow(self) -> Iterator[None]:
        """Copy the intent to a ConfigMap if the call in the block takes a long time (M-010)."""
        timer = threading.Timer(SLOW_AFTER_SECONDS, self.keep_copy)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def accept(self, prepared: ProvisionOptions, answer: ProvisionResult) -> JsonObject:
        """Return the PV to save (L-040 step 9).

        Raises:
            AttemptError: BACKGROUND, because the volume exists, but the result is not a usable PV.
        """
        name = prepared.pv_name
        try:
            # The result is copied via JSON, so that a result that cannot be saved fails here, as a
            # defect of the plug-in.
            copied = msgspec.json.decode(msgspec.json.encode(answer.volume), type=dict[str, Any])
            found = optional_text(copied, "metadata", "name")
        except Exception as error:
            raise AttemptError(
                f"provision returned no PersistentVolume: {describe(error)}", State.BACKGROUND
            ) from error
        if found != name:
            raise AttemptError(
                f"provision returned a volume named {found!r}; "
                f"its name must be options.pv_name, {name!r}",
                State.BACKGROUND,
            )
        volume = _DEFAULTS | copied
        complete = complete_volume(volume, claim=self.claim, storage_class=self.storage_class)
        if not self.add_finalizer:
            own = text_list(volume, "metadata", "finalizers")
            complete["metadata"]["finalizers"] = [
                one for one in complete["metadata"]["finalizers"] if one in own
            ]
        return complete


def describe(error: Exception) -> str:
    """Return the author's message or, if there is none, the exception's class and message."""
    words = getattr(error, "message", None)
    if words and isinstance(words, str):
        return words
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
