"""How is a result written so that it never lands on another state than its own (MR-040, MR-041)?

Every write names uid and resourceVersion. A conflict is answered by a fresh read and a new look
whether the write is still right, without a driver call and without a back-off step.
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
    """Now, as the API server writes it."""
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
            NotFoundError: it is gone; another one of its name is not it.
        """
        metadata = self.claim["metadata"]
        found = self._context.kube.get_claim(metadata["namespace"], metadata["name"])
        if text(found, "metadata", "uid") != metadata["uid"]:
            message = f'persistentvolumeclaims "{metadata["name"]}" not found'
            raise NotFoundError(404, "NotFound", message)
        self.claim = found
        return found

    def read_volume(self) -> JsonObject:
        """Read the volume again."""
        found = self._context.kube.get_volume(self.volume["metadata"]["name"])
        if text(found, "metadata", "uid") != self.volume["metadata"]["uid"]:
            message = f'persistentvolumes "{found["metadata"]["name"]}" not found'
            raise NotFoundError(404, "NotFound", message)
        self.volume = found
        return found

    def edit_claim_once(self, step: str, change: Callable[[ClaimEdit], bool]) -> None:
        """Write a change of the claim's status, if there is any and `change` says it counts.

        Raises:
            ConflictError: the claim changed since it was read.
            ApiError: refused.
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
        """Write a result, on a newer claim too as long as `change` says that it still counts.

        Raises:
            ConflictError: five times in a row.
            ApiError: refused.
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
            change: from the volume as it is to what is to be merged; None when nothing is.

        Raises:
            ConflictError: five times in a row.
            ApiError: refused.
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
