"""Marks every attachment of a driver that cannot attach as attached (A-075, A-076, DA-008)."""

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
    """Mark as attached without a call; remove an old finalizer."""
    try:
        if not work.is_attached:
            # This also clears errors and metadata from when the driver could attach.
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
    """Warn on the claim of the PV; if the PV is gone or the volume inline, no event is sent."""
    with suppress(AttachError):
        if name := volume_name(work.attachment):
            work.read_volume(name)
    work.warn("DetachFailed", "the driver does not detach any more, nothing was asked of it")
