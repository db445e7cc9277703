"""One pass over a claim: decide, provision, save (L-020, L-021, L-040, P-101).

Order of the effects on the happy path, and what a death after each leaves behind:

1. intent recorded: the next owner asks the driver again with the same name and inputs;
2. CreateVolume: the same;
3. volume recorded: the next owner only saves the PV;
4. PV saved: the next owner finds it by name and compares;
5. intent forgotten, key done.

A claim deleted after step 1 is finished all the same: its PV is saved, released by the cluster and
deleted like any other, so no volume is left without an object (P-401).

After a final error the record stays, marked `failed`, until the claim succeeds or is gone. A claim
that is deleted then gets one last attempt (T-058; the reference makes it too, when its cache is
quick enough): drivers answer INTERNAL after a time-out of their own with the volume already made,
and only asking again by name brings such a volume to light. The same holds for a claim that got
another volume meanwhile: nobody waits for ours.

An attempt that nobody waits for is asked again with what its record remembers: class, source and
attributes may have gone with the claim (an uninstalled chart, a deleted namespace). What is missing
even so, such as a deleted secret, only an operator can bring back: the record is then stranded, for
`csi-fleet audit` to show, and its key rests.
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
from workers.controllers.provisioner.own import own
from workers.controllers.provisioner.reschedule import clear_selected_node
from workers.controllers.provisioner.work import ClaimWork
from workers.engine.belief import ENDED, Vanished, doubt_about
from workers.engine.outcome import Action, Outcome, blocked, done, retry, wait
from workers.engine.pausing import class_pause
from workers.engine.steps import Step
from workers.errors import AttemptError, IgnoredError, State
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
# With the usual back-off (1 s, doubled each time) about four minutes.
TRIES_BEFORE_STRANDED = 8


def claim_volume(driver: Driver, key: Key) -> str:
    """The name that the claim's volume will have (P-121).

    A name that cannot be built (bad flags, no UID) is reported by the attempt itself.
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
    """One pass over one claim."""
    return ClaimPass(runtime, driver, key, lease, backend_of(driver), own(runtime)).run()


@dataclass(slots=True)
class ClaimPass(ClaimWork):
    """One pass over one claim, under its lease."""

    def run(self) -> Outcome:
        """Decides and acts; raises only for failures of the system itself.

        An attempt that stays without an end, whatever it waits for, is known outside of Redis too.
        """
        try:
            outcome = self.decide()
        except (Unreachable, TooManyRequestsError):
            if self.has_read:  # else the API server takes no copy either
                self.keep_copy()
            raise
        except Exception:
            self.keep_copy()
            raise
        if outcome.action is not Action.DONE:
            self.keep_copy()
        return outcome

    def decide(self) -> Outcome:
        """The pass itself."""
        record, unsaved, was_saved = self.own.intents.opened(self.lease)
        intent = Intent.from_record(record, self.key.uid)
        if unsaved is not None and saving.claim_uid(unsaved) != self.key.uid:
            unsaved = None
        if intent is not None and intent.volume not in {"", self.lease.volume}:
            # Called by another name, before the flags changed or by a worker with other ones.
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
        # Of a claim that has its volume no copy is written: it would prove that a call is open.
        self.record = intent.saved() if intent is not None and has_volume else intent
        # A claim that has its volume gets no second one, whatever a record says.
        if unsaved is not None and (not has_volume or saving.exists(self, live or {})):
            return self.in_use(unsaved) or self.backend.resume(self, unsaved, live)
        seconds = 0.0 if has_volume else self.hold_seconds(intent)
        if seconds > 0:
            return wait(seconds, "the call of another process may still run")
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
        """Why the record of a claim that waits for no volume is not believed; "" if it is."""
        names = {self.volume, unsaved["metadata"]["name"] if unsaved is not None else self.volume}

        def has_result(claim: JsonObject) -> bool:
            return is_bound(claim) and claim["spec"]["volumeName"] in names

        if self.is_elsewhere:  # the claim lives, and its volume is of another node's storage
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
        """Sets the attempt aside if a live PV names the volume that nobody waits for.

        A second PV of it would lead to its deletion, and so would the end of an unwanted one.
        """
        if not self.is_orphaned:
            return None
        user = self.user_of(lambda other: is_same_storage(other, volume))
        if not user:
            return None
        return self.set_aside(self.record, f"PersistentVolume {user} names its volume")

    def set_aside(self, intent: Intent | None, problem: str) -> Outcome:
        """Leaves an attempt to a person without believing its record: no copy is written of it."""
        _log.warning("record of an attempt is not believed", volume=self.volume, err=problem)
        trail.note("error", problem)
        if intent is not None and intent.problem != problem:
            kept = intent.stranded(problem)
            self.runtime.effects.reach(Step.RECORD_INTENT, self.lease)
            self.own.intents.put(self.lease.domain, kept.record(), self.lease)
        return done("stranded")

    def is_here(self, live: JsonObject | None) -> bool:
        """True if the claim names the node of this deployment, or there are no such nodes."""
        node = self.driver.settings.node
        return not node.enabled or (live is not None and selected_node(live) == node.node_name)

    def is_unowned(self, live: JsonObject | None) -> bool:
        """True in node deployment while the claim names no node."""
        return self.driver.settings.node.enabled and live is not None and not selected_node(live)

    def is_another_nodes(self, live: JsonObject | None) -> bool:
        """True in node deployment if another node's volume of that name is the claim's."""
        return live is not None and not self.is_here(live) and not self.is_unowned(live)

    def has_another(self, live: JsonObject) -> bool:
        """True if the claim was bound to a volume that is not ours to make."""
        bound_to = (live.get("spec") or {}).get("volumeName") or ""
        return bound_to not in {"", self.volume}

    def hold_seconds(self, intent: Intent | None) -> float:
        """How long a call of another process, that may still run, holds the next one back."""
        if intent is None:
            return 0.0
        return intent.hold_seconds(self.lease.session, is_orphaned=self.is_orphaned)

    def finish_orphan(
        self, intent: Intent | None, live: JsonObject | None, *, was_saved: bool
    ) -> Outcome:
        """Brings an attempt to its end that nobody waits for (P-401, T-058)."""
        if intent is None:
            return done("bound" if live is not None else "claim is gone")
        # Where the claim is another node's, so is the PV: the mark tells of what this one ended.
        if was_saved and not self.is_elsewhere and saving.exists(self, intent.claim):
            return done("volume exists")
        storage_class = intent.storage_class
        if storage_class is None:  # a record of an older version
            storage_class = self.storage_class(rules.claim_class_name(intent.claim))
        if storage_class is None or storage_class.get("provisioner") not in self.driver.names:
            return self.strand("its storage class is gone and not remembered")
        outcome = self.provision(intent.claim, None, storage_class, intent)
        if outcome.action is Action.RETRY and self.record is None:
            return done("claim is gone")
        return outcome

    def strand(self, problem: str) -> Outcome:
        """Without an operator this attempt has no end: after some tries its key rests.

        The tries are for what comes back by itself: a namespace made anew with its secret, a right.
        """
        _log.warning("volume without claim cannot be asked for", volume=self.volume, err=problem)
        trail.note("error", problem)
        if self.record is None or self.lease.fails < TRIES_BEFORE_STRANDED:
            return retry("cannot be asked for")
        self.record = self.record.stranded(problem)
        self.keep_copy()
        return done("stranded") if self.record.is_copied else retry("cannot be asked for")

    def sync(
        self, claim: JsonObject, live: JsonObject | None, intent: Intent | None, *, was_saved: bool
    ) -> Outcome:
        """L-021 for a claim that exists or is in progress."""
        if is_bound(claim):
            return saving.ended(self, "bound")
        # An open call is repeated as it was sent. A class made since counts once it has ended.
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
        # A fellow on another node has no mark of ours.
        is_told = was_saved or self.driver.settings.node.enabled
        if is_told and saving.exists(self, claim, by_any_name=was_saved):
            return done("volume exists")
        if storage_class is None:
            return retry("storage class not found")
        if storage_class.get("provisioner") not in self.driver.names:
            if intent is not None:  # a call may still run: its volume must not be forgotten
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
        """One event when the pause of its class outlasts a claim's first minute."""
        age = time.time() - stamp(claim["metadata"].get("creationTimestamp") or "")
        if self.runtime.lasting is not None and age > LASTING_SECONDS:
            name = rules.claim_class_name(claim)
            advice = f"csi-fleet resume --class={name}"
            cause = Cause("class-paused", f"An operator paused it: {paused.reason}.", advice)
            self.runtime.lasting.tell(self.key, cause)

    def provision(
        self,
        claim: JsonObject,
        live: JsonObject | None,
        storage_class: JsonObject,
        intent: Intent | None,
    ) -> Outcome:
        """One attempt and what follows from its end (L-040 steps 6 to 10, P-400)."""
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
        """The driver's free space may have changed (CAP-030)."""
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
        """The outcome table for a failed attempt (L-050, P-400, P-414, P-420)."""
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
            # First: a record that outlived the annotation would provision without the scheduler.
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
        """After a final error: nothing runs, but a claim deleted now gets its last attempt.

        Args:
            claim: of the attempt; one that is being deleted had its last attempt just now, and
                so had one that was gone when the driver was asked (P-400: work stops).
            attempt: that failed.
            is_over: the error leaves no doubt, and there was none before.
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
        """This attempt asked nothing; what an earlier one may have left stays known."""
        if not self.had_failed:
            self.forget_intent()

    def slow_retry(self, storage_class: JsonObject) -> Outcome:
        """Not before the maximal retry interval, unless the class is replaced (P-414, D-023)."""
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
        """A class by name, None if there is none."""
        return self.own.safekeeping.storage_class(name, self.lease.catalog)


def is_bound(claim: JsonObject | None) -> bool:
    """True if the claim names its volume."""
    return claim is not None and bool((claim.get("spec") or {}).get("volumeName"))


def slow_delay_seconds(memo: str, storage_class: JsonObject | None, now: float) -> float:
    """Seconds an infeasible claim still waits; 0 if none or its class was replaced (L-060)."""
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
