"""Writes a result only if the object still has the state that the result was computed for.

Every write is conditional on the uid and the resourceVersion (MR-040, MR-041). After a conflict the
object is read again and the write is checked again, without a driver call and without a back-off.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from workers.controllers.resizer.editing import ClaimEdit
from workers.engine.live import WRITE_TRIES, Gone, LivePass
from workers.kube import paths
from workers.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.kube.objects import JsonObject


def timestamp() -> str:
    """Return the current time in the API server's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def _not_found(plural: str, item: JsonObject) -> Iterator[None]:
    """Turn `Gone` into a write error, so that the reconcile's other steps continue."""
    try:
        yield
    except Gone as gone:
        message = f'{plural} "{item["metadata"]["name"]}" not found'
        raise NotFoundError(404, "NotFound", message) from gone


@dataclass
class Writer(LivePass):
    """Writes to the claim that is being reconciled, and to its volume.

    Attributes:
        volume: the PV as it was last read or written.
    """

    volume: JsonObject = field(kw_only=True)

    def edit_claim(
        self, step: str, change: Callable[[ClaimEdit], bool], *, tries: int = WRITE_TRIES
    ) -> None:
        """Write a change to the claim's status if `change` returns True and there is a difference.

        After a conflict the write is retried while `change` returns True for the new state.

        Raises:
            ConflictError: `tries` conflicts in a row.
            NotFoundError: the claim is gone, or a different claim has its name.
            ApiError: the write was refused.
        """

        def patch(claim: JsonObject) -> JsonObject | None:
            edit = ClaimEdit(claim, timestamp())
            return edit.patch() if change(edit) else None

        with _not_found("persistentvolumeclaims", self.item):
            self.write(step, patch, status=True, tries=tries)

    def edit_volume(self, step: str, change: Callable[[JsonObject], JsonObject | None]) -> None:
        """Write a change to the volume, unless `change` returns None instead of a merge patch.

        Raises:
            ConflictError: `WRITE_TRIES` conflicts in a row.
            NotFoundError: the volume is gone, or a different volume has its name.
            ApiError: the write was refused.
        """

        def patch(volume: JsonObject) -> JsonObject | None:
            self.volume = volume
            return change(volume)

        with _not_found("persistentvolumes", self.volume):
            self.volume = self.write_to(paths.VOLUMES, self.volume, step, patch)
