"""A driver that cannot attach: every attachment is said to be attached (A-075, A-076, DA-008)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from workers.controllers.attacher import writes
from workers.controllers.attacher.attach import Busy
from workers.controllers.attacher.detach import release
from workers.controllers.attacher.source import AttachError, volume_name
from workers.engine.outcome import done
from workers.kube.errors import NotFoundError

if TYPE_CHECKING:
    from workers.controllers.attacher.work import Work
    from workers.engine.outcome import Outcome


def pretend(work: Work) -> Outcome:
    """Attached, without a call; finalizers of a time when the driver could attach go."""
    try:
        if not work.is_attached:
            # Errors and metadata of a time when the driver could attach go as well.
            body = writes.attached_patch(work.attachment, {})
            work.patch("save-attached", body, status=True)
        if work.is_deleting and work.has_finalizer:
            _tell(work)
            release(work)
    except NotFoundError:
        return done("attachment is gone")
    except Busy as busy:
        return busy.outcome
    return done("attached without a call")


def _tell(work: Work) -> None:
    """The claim is the PV's: one that is gone, or inline, has nobody to tell."""
    with suppress(AttachError):
        if name := volume_name(work.attachment):
            work.read_volume(name)
    work.warn("DetachFailed", "the driver does not detach any more, nothing was asked of it")
