"""Creates the snapshot of one snapshot content (SNS-020 to SNS-025).

Everything is prepared before anything is written (SND-004). The effects follow in the order of
SNQ-011: write the intent and the annotation, make the call, write the status, remove the annotation
and the intent.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from csi_client import errors
from csi_client.errors import CsiError, UnusableAnswerError
from workers.controllers.snapshotter import orphans, request, topology
from workers.controllers.snapshotter.decide import (
    Action,
    is_final,
    is_nameless,
    made_nothing,
    may_have_made,
)
from workers.controllers.snapshotter.intent import SLOW_AFTER_SECONDS, Intent
from workers.controllers.snapshotter.work import ContentPass, held_back, poll
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry, wait
from workers.errors import AttemptError, RecordTooLarge, State
from workers.kube.errors import RefusedError
from workers.observability import trail
from workers.queue.locks import Mode, stored_volume
from workers.translate import snapshot_objects as objects
from workers.translate import snapshot_secrets
from workers.translate.fields import annotations_of, is_deleting, text_map, version_of
from workers.translate.go_text import quote
from workers.translate.snapshot_status import content_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from workers.kube.objects import JsonObject
    from workers.topology.selectors import Selector
    from workers.translate.secrets import SecretRef

CREATES: Final = frozenset({Action.CREATE, Action.REPEAT, Action.LAST_CALL})
# According to CSI, these codes mean that the request itself is wrong, so an early retry is useless
# (SND-033).
_SLOW_CODES: Final = frozenset({errors.INVALID_ARGUMENT, errors.UNIMPLEMENTED})


class Creation:
    """Calls CreateSnapshot for one snapshot content; every call uses the same name (SNS-020).

    Args:
        work: the reconcile.
        action: CREATE while the content has no status; whether the content has a status decides
            the text of an error (SNS-023). LAST_CALL for the last call before the object is
            released: no annotation is written, and the snapshot that the call returns is
            deleted.
    """

    calls: ClassVar[orphans.Calls] = orphans.SNAPSHOTS
    # Two pairs of the reason and the text of an error: one for the first call, one for later calls.
    words: ClassVar[tuple[tuple[str, str], tuple[str, str]]] = (
        ("SnapshotCreationFailed", "Failed to create snapshot"),
        ("SnapshotContentCheckandUpdateFailed", "Failed to check and update snapshot content"),
    )
    input_words: ClassVar[str] = "create snapshot for content"
    still_announced: ClassVar[str] = (
        "failed to remove VolumeSnapshotBeingCreated annotation on the content"
    )

    def __init__(self, work: ContentPass, action: Action) -> None:
        self.work = work
        self.is_last = action is Action.LAST_CALL
        self.reason, self.prefix = self.words[0 if action is Action.CREATE else 1]

    def run(self, snapshot_class: JsonObject | None) -> Outcome:
        """Prepares the request, calls the driver and acts on the answer."""
        work, known = self.work, self.work.intent
        try:
            wanted = self.repeated() or self.prepared(snapshot_class)
            secrets = self.secrets(wanted.secret)
        except AttemptError as error:
            if known is None or not is_deleting(work.item):
                self.blame(error.message)
                return retry("not prepared")
            # The class and the secret may have been deleted; the intent is then used without them.
            wanted, secrets = known, orphans.secrets_of(work, known)
        # The provisioner takes the same locks exclusively when it deletes volumes.
        if known is not None and known.handle and work.is_wanted_gone() and self.handle() is None:
            return orphans.discard(work, self.calls, known.handle, known.members, blame=self.blame)
        locks = [stored_volume(work.driver.name, one, Mode.SHARED) for one in wanted.volumes]
        work.acquire(*locks)
        before = work.intent
        if self.handle() is not None:
            work.begin_look()
        else:
            try:
                if not self.announce(wanted):
                    return wait(0, "deleted before the call")
            except RecordTooLarge as error:
                self.blame(str(error))
                return retry("not recorded")
        try:
            answer = self.call(wanted, secrets)
            self.check_same(answer)
        except CsiError as error:
            return self.failed(error, before)
        return self.created(answer)

    def check_same(self, answer: Any) -> None:
        """Compares a ready answer with the handles that an earlier call with this name returned.

        Raises:
            UnusableAnswerError: one of these handles is missing, so the answer says nothing
                about that snapshot.
        """
        made = self.handles_of(answer)
        lost = [one for one in self.handles() if one not in made]
        if answer.ready_to_use and lost:
            raise UnusableAnswerError(
                f"driver {self.work.driver.name} answered with {', '.join(made)}, but with "
                f"{', '.join(lost)} before. Update the driver, or report it to its maintainers; "
                "delete in the storage what no content names",
                rpc="",
            )

    def blame(self, message: str) -> None:
        """Writes the error to the status and records it as an event (SNS-023)."""
        self.work.blame(self.reason, f"{self.prefix}: {message}")

    def input_failed(self, cause: str) -> AttemptError:
        """Returns the error for a missing input (SNS-020, rows 1 and 2)."""
        return AttemptError(
            f"failed to get input parameters to {self.input_words} {self.work.name}: "
            f"{quote(cause)}",
            State.NO_CHANGE,
        )

    # Overridden for groups.

    def handle(self) -> str | None:
        """Returns the snapshot's handle from the status."""
        return objects.status_handle(self.work.item)

    def handles(self) -> list[str]:
        """The handles in the status."""
        return [known] if (known := self.handle()) else []

    def handles_of(self, answer: Any) -> list[str]:
        """The handles in an answer."""
        return [answer.snapshot_id]

    def class_name(self) -> str | None:
        """Returns the name of the class that the content names."""
        return objects.class_name(self.work.item)

    def missing_class(self) -> str:
        """Returns the error text for a snapshot content without a class."""
        return f"failed to take snapshot {self.work.name} without a snapshot class"

    def source(self) -> Intent:
        """Returns an intent with the snapshot's name and its source volume (SNS-020, row 6).

        Raises:
            AttemptError: the content is not bound.
        """
        content, name = self.work.item, self.work.name
        handle, uid = objects.volume_handle(content) or "", objects.ref_uid(content)
        if not uid:
            cause = f"cannot create snapshot. Snapshot content {name} not bound to a snapshot"
            raise AttemptError(self.taking_failed(cause), State.NO_CHANGE)
        return Intent(self.work.settings.snapshot_name.name(uid), (handle,))

    def taking_failed(self, cause: str) -> str:
        """Returns the error text for an error from the driver."""
        handle = objects.volume_handle(self.work.item)
        return f"failed to take snapshot of the volume {handle}: {quote(cause)}"

    def parameters(self, class_parameters: dict[str, str]) -> dict[str, str]:
        """Returns the parameters for the call."""
        tells = self.work.settings.extra_metadata
        return request.parameters(class_parameters, self.work.item, tells=tells)

    def allowed(self, snapshot_class: JsonObject) -> Selector:
        """Returns the topologies that the class allows; [] for any."""
        return topology.allowed(self.work, snapshot_class)

    def save_topology(self, snapshot: Any) -> None:
        """Writes the topology in the answer to the content, before the content can be ready."""
        if self.handle() is None or snapshot.ready_to_use:  # not at each poll
            topology.save(self.work, snapshot)

    def call(self, wanted: Intent, secrets: dict[str, str]) -> Any:
        """Calls CreateSnapshot; copies the intent to a ConfigMap if the call is slow."""
        work = self.work
        work.reach("create-snapshot")
        answer = orphans.ask_for_snapshot(
            work,
            wanted,
            secrets,
            on_slow=work.copy_intent,
            slow_after_seconds=SLOW_AFTER_SECONDS,
        )
        topology.check(work, answer)
        return answer

    def created(self, snapshot: Any) -> Outcome:
        """Writes the snapshot's data to the status, then ends the attempt (SNS-025)."""
        created = request.created_nanoseconds(snapshot, time.time())
        return self.finish(
            lambda item: content_status(
                item.get("status"),
                handle=snapshot.snapshot_id,
                is_ready=snapshot.ready_to_use,
                created_nanoseconds=created,
                size_bytes=snapshot.size_bytes,
            ),
            snapshot.snapshot_id,
            (),
            is_ready=snapshot.ready_to_use,
            before=lambda: self.save_topology(snapshot),
        )

    # Shared by snapshots and groups.

    def repeated(self) -> Intent | None:
        """Returns the recorded request to repeat; None if a new request must be prepared.

        A different request might be refused or might create a second snapshot. So a recreated class
        or changed flags take effect only once the call has ended.
        """
        if self.handle() is not None:
            known = self.work.asked
        else:
            known = self.work.intent
            if known is not None and not (known.is_open or self.is_last):
                return None
        return known if known is not None and known.parameters is not None else None

    def prepared(self, snapshot_class: JsonObject | None) -> Intent:
        """Prepares a new request and returns it as an intent.

        Raises:
            AttemptError: an input is missing or wrong; the texts are those of SNS-020 rows 1, 2, 4
                and 6.
        """
        named = self.class_name()
        if named is None:
            raise self.input_failed(self.missing_class())
        if snapshot_class is None:
            missing = objects.not_listed(self.work.names.class_words, named)
            raise self.input_failed(missing)
        try:
            secret = self.secret_ref()
        except AttemptError as error:
            raise self.input_failed(error.message) from error
        try:
            parameters = self.parameters(text_map(snapshot_class, "parameters"))
        except AttemptError as error:
            message = f"failed to remove CSI Parameters of prefixed keys: {error.message}"
            raise AttemptError(message, State.NO_CHANGE) from error
        allowed = self.allowed(snapshot_class)
        wanted = replace(self.source(), parameters=parameters, secret=secret, allowed=allowed)
        known = self.work.asked or self.work.intent
        # The driver identifies the snapshot by the name in the first call, even if the prefix has
        # changed since.
        return wanted if known is None else replace(wanted, name=known.name)

    def secret_ref(self) -> SecretRef | None:
        """Returns the reference to the secret that the annotations name (SNA-024)."""
        names = self.work.names
        what = f"{names.words} {quote(self.work.name)}"
        annotations = annotations_of(self.work.item)
        return snapshot_secrets.from_annotations(
            annotations, names.secret_name, names.secret_namespace, what
        )

    def secrets(self, ref: SecretRef | None) -> dict[str, str]:
        """Reads the secret.

        Like csi-snapshotter, it does not write the cause of a failure to the object.
        """
        try:
            return self.work.secret(ref)
        except (RefusedError, AttemptError) as error:
            if isinstance(error, RefusedError):
                trail.refused(error)
            words = self.work.names.words
            cause = f"cannot get credentials for {words} {quote(self.work.name)}"
            raise self.input_failed(cause) from error

    def announce(self, wanted: Intent) -> bool:
        """Writes the intent and the annotation; returns False if the object is being deleted."""
        work, known = self.work, self.work.intent
        # A snapshot whose handle is missing in the status needs its handle before it can be
        # deleted.
        was_open = work.is_announced() or known is not None or is_nameless(work.item)
        may_have_copy = work.is_announced() if known is None else known.has_copy
        begun = replace(
            wanted,
            is_open=True,
            is_failed=self.is_last,
            has_copy=may_have_copy,
            is_copied=False,
            deadline=work.deadline(),
            is_retained=not objects.is_deleted_with_snapshot(work.item),
            version=int(version_of(work.item) or 0),
        )
        if known is not None:
            begun = replace(
                begun,
                handle=known.handle,
                members=known.members,
                earlier=known.before(wanted),
                copy_uid=known.copy_uid,
            )
            work.overtake(known.deadline)
        elif work.is_announced():  # Redis lost the intent, and with it the call's deadline
            work.overtake(work.deadline())
        work.remember(begun)
        if self.is_last:
            return True  # the last call needs no annotation
        try:
            work.annotate()
        except Exception:
            work.ended()  # the call will not be made
            raise
        if is_deleting(work.item) and not was_open:
            work.ended()
            work.forget()
            return False
        return True

    def failed(self, error: CsiError, before: Intent | None) -> Outcome:
        """Acts on an error of the call (SNS-021, SNS-023)."""
        work = self.work
        if isinstance(error, UnusableAnswerError) and error.made and self.handle() is None:
            work.record_answer(error.made, error.members)
        was_open = before is not None and before.is_open
        known = work.intent
        earlier = known.with_earlier() if known is not None else None
        if error.code == errors.ALREADY_EXISTS and earlier is not None:
            # The earlier call created the snapshot, so the driver expects that call's request.
            work.intent = earlier
            work.copy_intent()
            self.blame(self.taking_failed(str(error)))
            return retry(error.code_name)
        if is_final(error) and self.is_last and not was_open:
            work.forget()
            return wait(0, "nothing was left")
        if is_final(error) and self.may_be_there(error, before):
            work.close()
        elif is_final(error) or self.may_give_up(error, before):
            work.forget()
        elif known is not None:
            self.keep_open(error, known, before)
        else:
            work.end_look()
        self.blame(self.taking_failed(str(error)))
        slow = work.settings.retry_interval_max_seconds if error.code in _SLOW_CODES else 0.0
        return retry(error.code_name, not_before_seconds=slow)

    def may_be_there(self, error: CsiError, before: Intent | None) -> bool:
        """True if a snapshot with this name may exist even though the driver's error is final."""
        is_uncertain = before is not None and (before.is_open or before.is_failed)
        return self.handle() is None and (is_uncertain or may_have_made(error))

    def keep_open(self, error: CsiError, known: Intent, before: Intent | None) -> None:
        """Keeps the intent, because the driver may still be creating the snapshot."""
        if not made_nothing(error):
            self.work.copy_intent()
        else:
            is_first = before is None or before.is_full
            self.work.remember(known.as_full() if is_first else known)

    def may_give_up(self, error: CsiError, before: Intent | None) -> bool:
        """True if the object is to be deleted and no call created a snapshot (SND-032).

        No call created a snapshot if the pool was full each time, or if the volume has no snapshot
        and no other call is in flight.
        """
        work = self.work
        if not (work.is_wanted_gone() and made_nothing(error)):
            return False
        if not (work.is_announced() or self.is_last):
            return False
        was_closed = before is not None and before.is_full
        if was_closed:
            return True
        # A dead worker's call may have used the pool's last space.
        return not work.overtaken_seconds() and orphans.is_volume_without_snapshots(work)

    def finish(
        self,
        change: Callable[[JsonObject], JsonObject | None],
        handle: str,
        members: Sequence[str],
        *,
        is_ready: bool,
        before: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Calls `before`, writes the status, then removes annotation and intent (SNQ-011 c).

        If the object is gone, deletes a snapshot that was never reported in the object's status.
        """
        work, is_reported = self.work, self.handle() is not None
        work.record_answer(handle, members)
        if self.is_last:  # even with policy Retain, because no object names the handle
            return orphans.discard(work, self.calls, handle, members, blame=self.blame)
        try:
            before()
            work.write_status("write-status", change)
        except Gone:
            if not is_reported:
                return orphans.discard(work, self.calls, handle, members)
            work.forget()
            return done("gone")
        except RefusedError as error:
            words = f"error updating status for volume {work.names.words} {work.name}: {error}"
            self.blame(words)
            return retry("status not written")
        try:
            # A later reconcile drops the deadline of an overtaken call.
            return poll(work) if not is_ready else self.over()
        except RefusedError as error:
            self.blame(f"{self.still_announced} {work.name}: {quote(str(error))}")
            return retry("annotation not removed")

    def over(self) -> Outcome:
        """Ends the attempt of a ready snapshot."""
        self.work.forget()
        return held_back(self.work) or done("ready")
