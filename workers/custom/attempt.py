"""The plug-in's side of one attempt: intent, call, complete PV (L-040 steps 6 to 9, M-010)."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.provisioner.intent import Intent
from workers.controllers.provisioner.safekeeping import SLOW_AFTER_SECONDS
from workers.custom.api import Ignored, ProvisionError, ProvisionOptions, ProvisionResult
from workers.engine.steps import Step
from workers.errors import AttemptError, IgnoredError, ProvisionerError, State
from workers.translate import claims
from workers.translate.names import volume_name
from workers.translate.volume import complete_volume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workers.controllers.provisioner.claims import ClaimPass
    from workers.custom.api import Provisioner
    from workers.kube.objects import JsonObject

_log = logging.getLogger(__name__)

_DEFAULTS: Final = {"apiVersion": "v1", "kind": "PersistentVolume"}


@dataclass(slots=True)
class CustomAttempt:
    """One call of `provision`, under the lease of its volume."""

    work: ClaimPass
    claim: JsonObject
    storage_class: JsonObject
    intent: Intent | None
    provisioner: Provisioner
    add_finalizer: bool
    was_sent: bool = field(init=False, default=False)

    def run(self) -> JsonObject:
        """Returns the complete PV, already recorded in Redis.

        Raises:
            AttemptError: with the state that decides what follows.
            IgnoredError: the provisioner leaves the claim to others.
        """
        options = self.options()
        self.record_intent(options)
        volume = self.complete(options.pv_name, self.call(options))
        self.work.runtime.steps.reach(Step.RECORD_VOLUME, self.work.lease)
        self.work.runtime.intents.created(self.work.lease.domain, self.current.record(), volume)
        return volume

    @property
    def current(self) -> Intent:
        """The intent of this attempt, once it is recorded."""
        if self.intent is None:
            raise AssertionError("the intent is recorded before anything needs it")
        return self.intent

    def options(self) -> ProvisionOptions:
        """Copies, for a plug-in must not change what the engine goes on with."""
        settings = self.work.driver.settings.provision
        try:
            name = volume_name(
                settings.volume_name_prefix,
                settings.volume_name_uuid_length,
                self.claim["metadata"].get("uid") or "",
            )
        except AttemptError as error:
            state = error.state if self.intent is None else State.NO_CHANGE
            raise AttemptError(error.message, state) from error
        return ProvisionOptions(
            storage_class=deepcopy(self.storage_class),
            pv_name=name,
            claim=deepcopy(self.claim),
            selected_node=claims.selected_node(self.claim) or None,
        )

    def record_intent(self, options: ProvisionOptions) -> None:
        """Before the call: from now on the attempt is finished by somebody, whatever dies."""
        work = self.work
        self.intent = Intent.begin(
            key=work.key.text,
            driver=work.driver.name,
            claim=self.claim,
            selected_node=options.selected_node or "",
            pin=None,
            previous=self.intent,
        )
        work.runtime.steps.reach(Step.RECORD_INTENT, work.lease)
        work.runtime.safekeeping.begin(work.lease, self.intent)
        work.record = self.intent

    def call(self, options: ProvisionOptions) -> ProvisionResult:
        """`provision`, its exceptions classified (L-101).

        An exception that is not ours says nothing about the storage, so it counts as BACKGROUND.
        """
        self.work.runtime.steps.reach(Step.CREATE_VOLUME, self.work.lease)
        self.was_sent = True
        with self.copied_when_slow():
            try:
                result = self.provisioner.provision(options)
            except Ignored as ignored:
                raise IgnoredError(ignored.reason) from None
            except ProvisionError as error:
                raise AttemptError(error.message, error.state, code=error.code) from None
            except Exception as error:
                _log.exception("provisioner %s failed unexpectedly", self.work.driver.name)
                raise AttemptError(describe(error), State.BACKGROUND) from error
        if not isinstance(result, ProvisionResult):
            raise AttemptError(
                f"provision returned {type(result).__name__}, not ProvisionResult", State.BACKGROUND
            )
        return result

    @contextmanager
    def copied_when_slow(self) -> Iterator[None]:
        """Keeps the intent outside of Redis too when the call takes long (M-010)."""
        timer = threading.Timer(SLOW_AFTER_SECONDS, self.keep_copy)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def keep_copy(self) -> None:
        """Runs beside the call; a failure costs only this safety."""
        if not self.work.lease.is_held() or self.current.has_copy:
            return
        try:
            self.work.runtime.steps.reach(Step.COPY_INTENT, self.work.lease)
            self.intent = self.work.runtime.safekeeping.copy(self.work.lease.domain, self.current)
        except ProvisionerError as error:
            _log.warning("intent of %s is not copied: %s", self.work.lease.domain, error)
            return
        self.work.has_copy = self.current.has_copy
        self.work.record = self.intent

    def remember_background(self) -> None:
        """The end is not known: the record says so, in Redis and in a ConfigMap (P-401)."""
        if self.intent is not None:
            work = self.work
            work.runtime.steps.reach(Step.COPY_INTENT, work.lease)
            known = self.intent.in_background()
            self.intent = work.runtime.safekeeping.copy(work.lease.domain, known)
            work.has_copy = self.intent.has_copy
            work.record = self.intent

    def complete(self, name: str, result: ProvisionResult) -> JsonObject:
        """Step 9: the PV as it is saved.

        Raises:
            AttemptError: BACKGROUND, for the volume exists: the result is no usable PV.
        """
        volume: dict[str, Any] = _DEFAULTS | deepcopy(result.volume)
        metadata = volume.get("metadata") or {}
        if metadata.get("name") != name:
            raise AttemptError(
                f"provision returned a volume named {metadata.get('name')!r}; "
                f"its name must be options.pv_name, {name!r}",
                State.BACKGROUND,
            )
        complete = complete_volume(volume, claim=self.claim, storage_class=self.storage_class)
        if not self.add_finalizer:
            own = list(metadata.get("finalizers") or [])
            complete["metadata"]["finalizers"] = [
                one for one in complete["metadata"]["finalizers"] if one in own
            ]
        return complete


def describe(error: Exception) -> str:
    """The event text of an exception the author did not choose words for."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
