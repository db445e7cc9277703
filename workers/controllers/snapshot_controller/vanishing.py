"""Deletes the content of a snapshot (or group snapshot) that vanished during its reconcile.

If a deletion began before the API server accepted csi-fleet's finalizer, the object still vanishes
(kubernetes/kubernetes#77988), and no event mentions the content that was created in the meantime.
If the object already had a finalizer when the reconcile began, the object must have been removed by
force, and its content is kept.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from workers.controllers.snapshot_controller.deletion import (
    delete_content,
    mark_deleted,
    own_content,
)
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, wait
from workers.errors import ApiError
from workers.kube.errors import Unreachable
from workers.observability.logging import get_logger
from workers.translate import snapshot_objects as objects
from workers.translate.fields import text_list

if TYPE_CHECKING:
    from workers.controllers.snapshot_controller.frame import BindingPass

_log = get_logger(__name__)

TRIES: Final = 4
PAUSE_SECONDS: float = 1.0
"""The pause before the second try; the third try waits 3 times as long, the fourth 7 times."""


def run(work: BindingPass) -> Outcome:
    """Reconciles an object; deletes its content if the object has vanished meanwhile (SND-041)."""
    if not work.read():
        return done("gone")
    is_loose = work.named_content is None and not text_list(work.item, "metadata", "finalizers")
    try:
        return work.run()
    except Gone:
        if is_loose:
            take_back(work, TRIES)
        return wait(0, "gone meanwhile")
    except ApiError as error:
        if is_loose and not isinstance(error, Unreachable):
            take_back(work, 1)
        raise


def take_back(work: BindingPass, tries: int) -> None:
    """Deletes the content of an object that is gone; logs a warning if the deletion fails."""
    problem: ApiError | None = None
    for number in range(tries):
        time.sleep(PAUSE_SECONDS * (2**number - 1))
        try:
            if not _is_gone(work) or _is_taken_back(work):
                return
        except ApiError as error:
            problem = error
    _log.warning("the snapshot may be gone, and its content may be left over", err=problem)


def _is_gone(work: BindingPass) -> bool:
    """True if the object with this UID no longer exists."""
    uid = objects.uid_of(work.item)
    return work.context.kube.is_gone(work.resource, work.name, uid, namespace=work.namespace)


def _is_taken_back(work: BindingPass) -> bool:
    content = own_content(work)
    if content is None or not work.is_made(content):
        return True
    mark_deleted(work, work.words.contents, content, work.words.being_deleted)
    return not objects.is_deleted_with_snapshot(content) or delete_content(work, content)
