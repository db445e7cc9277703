"""The backoff store, which deletes a volume if its PV cannot be saved (L-081).

The library sleeps in its worker thread. Here, each attempt is one reconcile of the claim's key, and
between two attempts the key waits for the interval. The progress is stored in the volume's intent:
`{"saves": number of failed saves, "deletes": number of failed deletions, "due": earliest time of
the next attempt, "error": message of the last failed save}`. So no thread is blocked, and if a
process dies, another process continues.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers import constants as k
from workers.controllers.provisioner import saving
from workers.deadlines import Deadline
from workers.engine.outcome import Outcome, retry, wait
from workers.engine.steps import Step
from workers.errors import ApiError
from workers.kube.errors import AlreadyExistsError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.controllers.provisioner.work import ClaimWork
    from workers.custom.api import Options, Provisioner
    from workers.kube.objects import JsonObject

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BackoffStore:
    """Saves the PVs of one plug-in, or deletes their volumes after too many failures."""

    provisioner: Provisioner
    options: Options

    def go_on(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, live: JsonObject | None
    ) -> Outcome:
        """Make the next attempt if it is due: a save or, after the last save, a deletion."""
        progress = dict((work.record.store if work.record else None) or {})
        due = Deadline.read(progress.get("due"))
        seconds = work.lease.session.seconds_left(due)
        if seconds > 0:
            return wait(seconds, "volume is not saved yet")
        if progress.get("saves", 0) < self.options.save_attempts:
            return self.save(work, claim, volume, live, progress)
        return self.delete(work, claim, volume, progress)

    def save(
        self,
        work: ClaimWork,
        claim: JsonObject,
        volume: JsonObject,
        live: JsonObject | None,
        progress: dict[str, Any],
    ) -> Outcome:
        """Try once to create the PV; if the last attempt fails, delete the volume."""
        name = volume["metadata"]["name"]
        work.runtime.effects.reach(Step.SAVE_VOLUME, work.lease)
        try:
            work.runtime.effects.kube.create_volume(volume)
        except AlreadyExistsError as error:
            found = saving.existing(work, name)
            if saving.is_going(found) or not saving.is_same(found, volume):
                return self.not_saved(work, claim, volume, progress, error)
        except ApiError as error:
            return self.not_saved(work, claim, volume, progress, error)
        return saving.saved(work, claim, name, live)

    def not_saved(
        self,
        work: ClaimWork,
        claim: JsonObject,
        volume: JsonObject,
        progress: dict[str, Any],
        error: ApiError,
    ) -> Outcome:
        """Count a failed save; after the last attempt, send an event and begin the deletion."""
        progress |= {"saves": progress.get("saves", 0) + 1, "error": str(error)}
        if progress["saves"] < self.options.save_attempts:
            return self.later(work, progress)
        work.event(
            claim,
            "Warning",
            k.REASON_PROVISIONING_FAILED,
            f"Error creating provisioned PV object for claim {_name(claim)}: {error}. "
            "Deleting the volume.",
        )
        return self.delete(work, claim, volume, progress)

    def delete(
        self, work: ClaimWork, claim: JsonObject, volume: JsonObject, progress: dict[str, Any]
    ) -> Outcome:
        """Try once to delete the volume; here an `Ignored` exception counts as a failure."""
        work.runtime.effects.reach(Step.CLEAN_UP, work.lease)
        try:
            self.provisioner.delete(deepcopy(volume))
        except Exception as error:  # noqa: BLE001 - after any failure the volume may still exist
            progress["deletes"] = progress.get("deletes", 0) + 1
            _log.warning(
                "could not repeat the deletion of the volume",
                volume=volume["metadata"]["name"],
                err=error,
            )
            if progress["deletes"] < self.options.save_attempts:
                return self.later(work, progress)
            work.event(
                claim,
                "Warning",
                k.REASON_PROVISIONING_CLEANUP_FAILED,
                f"Error cleaning provisioned volume for claim {_name(claim)}: {error}. "
                "Please delete manually.",
            )
        work.forget_intent()
        return retry(f"failed to save volume: {progress.get('error', '')}")

    def later(self, work: ClaimWork, progress: dict[str, Any]) -> Outcome:
        """Store the progress in the intent, and make the key wait for the interval.

        No failure is counted.
        """
        seconds = self.options.save_interval_seconds
        if work.record is not None:
            due = work.lease.session.later(seconds).data()
            work.record = work.record.with_store({**progress, "due": due})
            work.runtime.effects.reach(Step.RECORD_INTENT, work.lease)
            work.own.intents.put(work.lease.domain, work.record.record(), work.lease)
        return wait(seconds, "volume is not saved yet")


def _name(claim: JsonObject) -> str:
    metadata = claim["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"
