"""Writes results only to the object state that they belong to (MR-040, MR-041).

Every write names uid and resourceVersion. After a conflict the object is read again and the write
is checked again, without a driver call and without a back-off.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from workers.controllers.resizer.editing import ClaimEdit
from workers.kube import paths
from workers.kube.client import MERGE_PATCH
from workers.kube.errors import ConflictError, NotFoundError
from workers.translate.fields import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.engine.context import Context
    from workers.kube.objects import JsonObject
    from workers.queue.leases import Lease

ATTEMPTS: Final = 5


def timestamp() -> str:
    """The current time in the API server's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Writer:
    """Writes to one claim and its volume.

    Attributes:
        claim, volume: the objects as they were last read or written.
    """

    def __init__(
        self, context: Context, lease: Lease, claim: JsonObject, volume: JsonObject
    ) -> None:
        self.claim = claim
        self.volume = volume
        self._context = context
        self._lease = lease

    def read_claim(self) -> JsonObject:
        """Read the claim again.

        Raises:
            NotFoundError: the claim is gone, or another one has its name.
        """
        metadata = self.claim["metadata"]
        found = self._context.kube.get_claim(metadata["namespace"], metadata["name"])
        if text(found, "metadata", "uid") != metadata["uid"]:
            message = f'persistentvolumeclaims "{metadata["name"]}" not found'
            raise NotFoundError(404, "NotFound", message)
        self.claim = found
        return found

    def read_volume(self) -> JsonObject:
        """Read the volume again.

        Raises:
            NotFoundError: the volume is gone, or another one has its name.
        """
        found = self._context.kube.get_volume(self.volume["metadata"]["name"])
        if text(found, "metadata", "uid") != self.volume["metadata"]["uid"]:
            message = f'persistentvolumes "{found["metadata"]["name"]}" not found'
            raise NotFoundError(404, "NotFound", message)
        self.volume = found
        return found

    def edit_claim_once(self, step: str, change: Callable[[ClaimEdit], bool]) -> None:
        """Write a change of the claim's status if `change` returns True and there is a difference.

        Raises:
            ConflictError: the claim changed since it was read.
            ApiError: the write was refused.
        """
        edit = ClaimEdit(self.claim, timestamp())
        patch = edit.patch() if change(edit) else None
        if patch is not None:
            metadata = self.claim["metadata"]
            path = paths.CLAIMS.path(metadata["name"], namespace=metadata["namespace"])
            self._context.effects.reach(step, self._lease)
            self.claim = self._context.effects.kube.client.patch(
                f"{path}/status", patch, MERGE_PATCH
            )

    def edit_claim(self, step: str, change: Callable[[ClaimEdit], bool]) -> None:
        """Write a result; after a conflict, retry while `change` says that it still applies.

        Raises:
            ConflictError: `ATTEMPTS` conflicts in a row.
            ApiError: the write was refused.
        """
        for left in range(ATTEMPTS - 1, -1, -1):
            try:
                self.edit_claim_once(step, change)
            except ConflictError:
                if not left:
                    raise
                self.read_claim()
            else:
                return

    def edit_volume(self, step: str, change: Callable[[JsonObject], JsonObject | None]) -> None:
        """Write a change of the volume.

        Args:
            step: name of the effect.
            change: returns the merge patch for the given volume; None writes nothing.

        Raises:
            ConflictError: `ATTEMPTS` conflicts in a row.
            ApiError: the write was refused.
        """
        for left in range(ATTEMPTS - 1, -1, -1):
            patch = change(self.volume)
            if patch is None:
                return
            metadata = self.volume["metadata"]
            identity = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            body = {**patch, "metadata": {**patch.get("metadata", {}), **identity}}
            self._context.effects.reach(step, self._lease)
            try:
                self.volume = self._context.effects.kube.patch_volume(
                    metadata["name"], body, MERGE_PATCH
                )
            except ConflictError:
                if not left:
                    raise
                self.read_volume()
            else:
                return
