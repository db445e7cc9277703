"""Reconciles a claim: decides, provisions and saves the volume (L-020, L-021, L-040, P-101).

If a worker dies during an attempt, the next worker that reconciles the claim finishes the attempt.
How it continues depends on the last step that the dead worker took:

1. The intent was recorded: the next worker calls the driver again with the same name and inputs.
2. CreateVolume was called: the next worker does the same as after step 1.
3. The volume was recorded: the next worker only saves the PV.
4. The PV was saved: the next worker finds the PV by name and compares it with the claim.
5. The intent was forgotten: the key is done.

An attempt is finished even if its claim is deleted after step 1. The cluster then releases the PV,
and the PV is deleted like any other, so no volume is left without an object (P-401).

After a final error the intent is kept, marked `failed`, until the claim succeeds or is gone. If the
claim is deleted, it gets one last attempt (T-058; csi-provisioner makes that attempt too, if its
cache is quick enough). The reason is that a driver can return INTERNAL after its own timeout
although it created the volume, and only another call with the same name finds that volume. A claim
that has meanwhile been bound to a different volume gets a last attempt for the same reason.

An attempt whose claim is gone is repeated from its intent, because the class, the source and the
attributes class may have been deleted with the claim (an uninstalled chart, a deleted namespace).
If something else is missing, such as a deleted secret, only an operator can restore it. The intent
is then marked `stranded`, `csi-fleet audit` lists it, and its key is no longer retried.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from workers import constants as k
from workers.controllers.capacity.publishing import publishing_of
from workers.controllers.provisioner import measure, saving
from workers.controllers.provisioner.backend import backend_of
from workers.controllers.provisioner.intent import Intent
from workers.controllers.provisioner.labels import follow
from workers.controllers.provisioner.own import own
from workers.controllers.provisioner.reschedule import clear_selected_node
from workers.controllers.provisioner.work import ClaimWork
from workers.engine.belief import ENDED, Vanished, doubt_about
from workers.engine.outcome import Action, Outcome, blocked, done, retry, wait
from workers.engine.pausing import class_pause
from workers.engine.steps import Step
from workers.errors import ApiError, AttemptError, IgnoredError, State
from workers.explain.facts import Cause
from workers.explain.lasting import LASTING_SECONDS
from workers.explain.words import stamp
from workers.kube import paths
from workers.kube.errors import TooManyRequestsError, Unreachable
from workers.migration.to_csi import is_same_storage
from workers.nodemode.ownership import selected_node
from workers.observability import trail
from workers.observability.logging import get_logger
from workers.queue.locks import Lock
from workers.translate import claims as rules
from workers.translate.names import volume_name

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimAttempt
    from workers.drivers.driver import Driver
    from workers.engine.context import Runtime
    from workers.kube.objects import JsonObject
    from workers.queue.keys import Key
    from workers.queue.leases import Lease

_log = get_logger(__name__)

INVALID_ARGUMENT = 3
# About four minutes with the default back-off (1 s, doubled each time).
TRIES_BEFORE_STRANDED = 8


def claim_volume(driver: Driver, key: Key) -> str:
    """Return the name that the claim's volume will have (P-121).

    If the name cannot be built (bad flags, no UID), returns a substitute name, and the attempt
    later reports the error.
    """
    try:
        return volume_name(
            driver.settings.provision.volume_name_prefix,
            driver.settings.provision.volume_name_uuid_length,
            key.uid,
        )
    except AttemptError:
        return f"claim:{key.uid}"


def sync_claim(runtime: Runtime, driver: Driver, key: Key, lease: Lease) -> Outcome:
    """Reconciles one claim."""
    return ClaimPass(runtime, driver, key, lease, backend_of(driver), own(runtime)).run()


@dataclass(slots=True)
class ClaimPass(ClaimWork):
    """One reconcile of one claim, under its lease."""

    def run(self) -> Outcome:
        """Decides and acts; raises only if the API server, Redis or csi-fleet itself fails.

        Unless the key is done, the intent of an open attempt is also copied to a ConfigMap.
        """
        try:
            outcome = self.decide()
        except (Unreachable, TooManyRequestsError):
            if self.has_read:  # otherwise the API server would not accept the copy either
                self.keep_copy()
            raise
        except Exception:
            self.keep_copy()
            raise
        if outcome.action is not Action.DONE:
            self.keep_copy()
        return outcome

    def decide(self) -> Outcome:
        """Reads the intent, the unsaved PV and the claim, and takes the step that is due."""
        record, unsaved, was_saved = self.own.intents.opened(self.lease)
        intent = Intent.from_record(record, self.key.uid)
        if unsaved is not None and saving.claim_uid(unsaved) != self.key.uid:
            unsaved = None
        if intent is not None and intent.volume not in {"", self.lease.volume}:
            # The recorded call used a different volume name, because the flags have changed since
            # that call or the worker that made the call has different flags.
            self.recorded_name = intent.volume
            busy = self.runtime.queue.acquire(self.lease, Lock(self.volume))
            if busy is not None:
                return blocked(busy, "somebody works on the volume of the recorded name")
        self.started = time.monotonic()
        live = self.read_claim()
        self.has_read = True
        self.is_elsewhere = intent is not None and self.is_another_nodes(live)
        self.is_orphaned = live is None or self.has_another(live) or self.is_elsewhere
        self.had_failed = intent is not None and intent.is_failed
        self.had_doubt = intent is not None
        if self.is_orphaned and (intent is not None or unsaved is not None):
            doubt = self.doubt(intent, unsaved, live)
            if doubt == ENDED:
                self.record = intent
                return saving.ended(self, doubt)
            if doubt:
                return self.set_aside(intent, doubt)
        has_volume = not self.is_orphaned and is_bound(live)
        # The intent of a bound claim is not copied, because a copy would count as proof that the
        # call is still open.
        self.record = intent.saved() if intent is not None and has_volume else intent
        # A bound claim gets no second volume, whatever its unsaved PV says.
        if unsaved is not None and (not has_volume or saving.exists(self, live or {})):
            return self.in_use(unsaved) or self.backend.resume(self, unsaved, live)
        seconds = 0.0 if has_volume else self.hold_seconds(intent)
        if seconds > 0:
            return wait(seconds, "the call of another process may still be running")
        if intent is not None and intent.is_saved and not has_volume:
            self.forget_intent()
            return done("volume exists")
        if self.is_orphaned:
            return self.finish_orphan(intent, live, was_saved=was_saved)
        if self.had_failed:
            intent = None
        claim = live if live is not None else {}
        return self.sync(claim, live, intent, was_saved=was_saved)

    def doubt(
        self, intent: Intent | None, unsaved: JsonObject | None, live: JsonObject | None
    ) -> str:
        """Return why the record of an orphaned claim is not trusted; "" if it is trusted."""
        names = {self.volume, unsaved["metadata"]["name"] if unsaved is not None else self.volume}

        def has_result(claim: JsonObject) -> bool:
            return is_bound(claim) and claim["spec"]["volumeName"] in names

        if self.is_elsewhere:  # the claim exists, but its volume is in another node's storage
            return ""
        if live is not None:
            return ENDED if has_result(live) else ""
        namespace, _, name = self.key.object.partition("/")
        vanished = Vanished(
            resource=paths.CLAIMS,
            name=name,
            namespace=namespace,
            is_it=lambda claim: claim["metadata"].get("uid") == self.key.uid,
            has_result=has_result,
        )
        since = (intent.claim_version if intent is not None else 0, self.lease.seen - 1)
        has_copy = partial(self.own.safekeeping.has_copy, self.lease)
        return doubt_about(self.runtime.kube, vanished, has_copy=has_copy, since=since)

    def in_use(self, volume: JsonObject) -> Outcome | None:
        """Sets the attempt aside if a live PV already uses its volume.

        A second PV must not be saved for that volume, because deleting the second PV would delete
        the volume. Nor may the volume be deleted as unwanted.
        """
        if not self.is_orphaned:
            return None
        user = self.user_of(lambda other: is_same_storage(other, volume))
        if not user:
            return None
        return self.set_aside(self.record, f"PersistentVolume {user} names its volume")

    def set_aside(self, intent: Intent | None, problem: str) -> Outcome:
        """Marks an attempt whose record is not trusted as stranded, without copying its record."""
        _log.warning("the record of an attempt is not trusted", volume=self.volume, err=problem)
        trail.note("error", problem)
        if intent is not None and intent.problem != problem:
            kept = intent.stranded(problem)
            self.runtime.effects.reach(Step.RECORD_INTENT, self.lease)
            self.own.intents.put(self.lease.domain, kept.record(), self.lease)
        return done("stranded")

    def is_here(self, live: JsonObject | None) -> bool:
        """True if the claim selects this worker's node; always True outside node deployment."""
        node = self.driver.settings.node
        return not node.enabled or (live is not None and selected_node(live) == node.node_name)

    def is_unowned(self, live: JsonObject | None) -> bool:
        """True in node deployment while the claim selects no node."""
        return self.driver.settings.node.enabled and live is not None and not selected_node(live)

    def is_another_nodes(self, live: JsonObject | None) -> bool:
        """True in node deployment if the claim selects another node, which creates the volume."""
        return live is not None and not self.is_here(live) and not self.is_unowned(live)

    def has_another(self, live: JsonObject) -> bool:
        """True if the claim is bound to a volume other than the one that this attempt creates."""
        bound_to = (live.get("spec") or {}).get("volumeName") or ""
        return bound_to not in {"", self.volume}

    def hold_seconds(self, intent: Intent | None) -> float:
        """Return how many seconds another process's call may still be running."""
        if intent is None:
            return 0.0
        return intent.hold_seconds(self.lease.session, is_orphaned=self.is_orphaned)

    def finish_orphan(
        self, intent: Intent | None, live: JsonObject | None, *, was_saved: bool
    ) -> Outcome:
        """Finishes an attempt if no claim is waiting for its volume (P-401, T-058)."""
        if intent is None:
            if live is not None and not self.is_elsewhere:
                follow(self, live)
            return done("bound" if live is not None else "claim is gone")
        # If the claim belongs to another node, an existing PV belongs to that node too, whereas
        # `was_saved` refers only to this node's PV.
        if was_saved and not self.is_elsewhere and saving.exists(self, intent.claim):
            return done("volume exists")
        storage_class = intent.storage_class
        if storage_class is None:  # the intent was written by an older version
            storage_class = self.storage_class(rules.claim_class_name(intent.claim))
        if storage_class is None or storage_class.get("provisioner") not in self.driver.names:
            return self.strand("its storage class is gone and not remembered")
        outcome = self.provision(intent.claim, None, storage_class, intent)
        if outcome.action is Action.RETRY and self.record is None:
            return done("claim is gone")
        return outcome

    def strand(self, problem: str) -> Outcome:
        """Retries a few times, then marks the attempt as stranded, so that an operator finishes it.

        A retry succeeds if the missing secret, its namespace or a permission has been restored.
        """
        _log.warning(
            "cannot repeat CreateVolume for a claim that is gone", volume=self.volume, err=problem
        )
        trail.note("error", problem)
        if self.record is None or self.lease.fails < TRIES_BEFORE_STRANDED:
            return retry("cannot be asked for")
        self.record = self.record.stranded(problem)
        self.keep_copy()
        return done("stranded") if self.record.is_copied else retry("cannot be asked for")

    def sync(
        self, claim: JsonObject, live: JsonObject | None, intent: Intent | None, *, was_saved: bool
    ) -> Outcome:
        """Provisions a volume for a claim that exists, or repeats the claim's open call (L-021)."""
        if is_bound(claim):
            outcome = saving.ended(self, "bound")
            try:
                follow(self, claim)
            except ApiError as error:
                if self.record is None:
                    raise
                # The record must not be kept because of a refused label. The next resync adds the
                # key again.
                _log.warning("the labels of the volume do not follow yet", err=error)
            return outcome
        # An open call is repeated with its recorded class; a newer class applies only to the next
        # new call.
        recorded = intent.storage_class if intent is not None else None
        storage_class = recorded or self.storage_class(rules.claim_class_name(claim))
        delay = slow_delay_seconds(self.lease.memo, storage_class, self.lease.session.now())
        if delay > 0 and intent is None:
            return Outcome(
                Action.RETRY, delay_seconds=delay, memo=self.lease.memo, reason="infeasible"
            )
        if intent is None or self.is_unowned(live):
            decision = self.backend.should_provision(self, claim, storage_class)
            if decision is not None:
                return decision
        # In node deployment the worker of another node may have saved the PV. That worker's mark is
        # not visible here.
        is_told = was_saved or self.driver.settings.node.enabled
        if is_told and saving.exists(self, claim, by_any_name=was_saved):
            return done("volume exists")
        if storage_class is None:
            return retry("storage class not found")
        if storage_class.get("provisioner") not in self.driver.names:
            if intent is not None:  # a call may still be running, so keep its intent
                return retry("class of another provisioner")
            return done("class of another provisioner")
        paused = (
            class_pause(self.runtime, rules.claim_class_name(claim)) if intent is None else None
        )
        if paused is not None:
            self.tell_pause(claim, paused)
            return paused
        return self.provision(claim, live, storage_class, intent)

    def tell_pause(self, claim: JsonObject, paused: Outcome) -> None:
        """Records an event if the claim is over a minute old and its class is still paused."""
        age = time.time() - stamp(claim["metadata"].get("creationTimestamp") or "")
        if self.runtime.lasting is not None and age > LASTING_SECONDS:
            name = rules.claim_class_name(claim)
            advice = f"csi-fleet resume --class={name}"
            cause = Cause(
                "class-paused", f"An operator paused the storage class: {paused.reason}.", advice
            )
            self.runtime.lasting.tell(self.key, cause)

    def provision(
        self,
        claim: JsonObject,
        live: JsonObject | None,
        storage_class: JsonObject,
        intent: Intent | None,
    ) -> Outcome:
        """Makes one attempt and acts on its result (L-040 steps 6 to 10, P-400)."""
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        self.event(
            claim,
            "Normal",
            k.REASON_PROVISIONING,
            f'External provisioner is provisioning volume for claim "{namespace}/{name}"',
        )
        attempt = self.backend.attempt(self, claim, storage_class, intent)
        try:
            volume = attempt.run()
        except IgnoredError as error:
            self.forget_unless_failed()
            in_node_mode = self.driver.settings.node.enabled
            self.tell_capacity(claim, State.NO_CHANGE if in_node_mode else State.FINISHED)
            return done(error.reason)
        except AttemptError as error:
            self.tell_capacity(claim, error.state)
            return self.failed(claim, storage_class, attempt, error)
        self.tell_capacity(claim, volume)
        return self.in_use(volume) or self.backend.save(self, attempt.claim, volume, live)

    def tell_capacity(self, claim: JsonObject, outcome: State | JsonObject) -> None:
        """Informs capacity publishing that the driver's free space may have changed (CAP-030)."""
        publishing = publishing_of(self.runtime)
        if publishing is not None:
            name = rules.claim_class_name(claim)
            publishing.provisioned(self.driver, name, outcome)

    def failed(
        self,
        claim: JsonObject,
        storage_class: JsonObject,
        attempt: ClaimAttempt,
        error: AttemptError,
    ) -> Outcome:
        """Return what to do after a failed attempt (L-050, P-400, P-414, P-420)."""
        message, state = error.message, error.state
        measure.failed(self, claim)
        if self.is_orphaned and not attempt.was_sent:
            self.event(claim, "Warning", k.REASON_PROVISIONING_FAILED, message)
            return self.strand(message)
        if error.code == INVALID_ARGUMENT:
            text = "Volume provisioning failed with infeasible error. Retries will be delayed. "
            self.event(claim, "Warning", k.REASON_PROVISIONING_FAILED, text + message)
            self.keep_failed(claim, attempt, is_over=not self.had_doubt)
            return self.slow_retry(storage_class)
        self.event(claim, "Warning", k.REASON_PROVISIONING_FAILED, message)
        if state is State.RESCHEDULE:
            # The intent is closed before the annotation is removed. If the intent were still open,
            # the claim would be provisioned without the scheduler.
            self.keep_failed(claim, attempt, is_over=not self.had_doubt)
            if clear_selected_node(self, claim):
                return done("rescheduled")
        if state is State.BACKGROUND:
            attempt.remember_background()
        elif state is not State.NO_CHANGE:
            self.keep_failed(claim, attempt)
        return retry(state.value)

    def keep_failed(
        self, claim: JsonObject, attempt: ClaimAttempt, *, is_over: bool = False
    ) -> None:
        """After a final error, keeps the intent as failed or forgets it.

        A failed intent leads to one last attempt if the claim is deleted. If the claim was already
        gone or being deleted, this was the last attempt, and no other is needed (P-400: work
        stops).

        Args:
            claim: the claim of the attempt.
            attempt: the attempt that failed.
            is_over: whether the error proves that no volume exists and that no earlier call can
                have left one.
        """
        is_leaving = self.is_orphaned or "deletionTimestamp" in claim["metadata"]
        was_last = is_leaving and self.overtaken_seconds() <= 0
        was_last = was_last or (self.is_orphaned and self.had_failed)
        if not attempt.was_sent:
            self.forget_unless_failed()
        elif is_over or was_last:
            self.forget_intent()
        else:
            self.runtime.effects.reach(Step.FORGET_INTENT, self.lease)
            self.record = self.own.safekeeping.keep_failed(self.lease, attempt.current)

    def forget_unless_failed(self) -> None:
        """Forgets the intent, unless an earlier failed attempt may have left a volume."""
        if not self.had_failed:
            self.forget_intent()

    def slow_retry(self, storage_class: JsonObject) -> Outcome:
        """Retries after the maximum interval, or once the class is replaced (P-414, D-023)."""
        seconds = self.driver.settings.provision.retry_interval_max_seconds
        memo = {
            "slow_until": self.lease.session.now() + seconds,
            "class_uid": storage_class["metadata"].get("uid", ""),
        }
        return Outcome(
            Action.RETRY,
            delay_seconds=seconds,
            memo=msgspec.json.encode(memo).decode(),
            reason="infeasible",
        )

    def storage_class(self, name: str) -> JsonObject | None:
        """Return the class with this name, or None if it does not exist."""
        return self.own.safekeeping.storage_class(name, self.lease.catalog)


def is_bound(claim: JsonObject | None) -> bool:
    """True if the claim names a volume."""
    return claim is not None and bool((claim.get("spec") or {}).get("volumeName"))


def slow_delay_seconds(memo: str, storage_class: JsonObject | None, now: float) -> float:
    """Return how many seconds an infeasible claim must still wait (L-060).

    The result is 0 if the claim's class has been replaced.
    """
    if not memo:
        return 0.0
    try:
        entry: dict[str, Any] = msgspec.json.decode(memo)
        until, class_uid = float(entry["slow_until"]), entry["class_uid"]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return 0.0
    if storage_class is not None and storage_class["metadata"].get("uid", "") != class_uid:
        return 0.0
    return max(0.0, until - now)
