"""Celery's remote control, reduced to what Flower needs to look.

Whoever may publish to the workers' channel could otherwise have a worker write anywhere, with the
rights of the worker: an answer goes to the list that the question names. So a worker answers known
questions alone, without arguments, and its answer goes to a list for answers.
"""

from __future__ import annotations

import re
from typing import Any, Final

from celery.app.control import Control
from kombu.pidbox import Mailbox, Node

from workers.observability.logging import get_logger

_log = get_logger(__name__)

QUESTIONS: Final = frozenset(
    {
        *("ping", "stats", "conf", "registered", "active_queues", "enable_events"),
        *("active", "reserved", "scheduled", "revoked"),
    }
)
"""What Flower asks; none of them changes what a worker does, but that it reports its tasks."""

_NAME: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANSWERS: Final = "{}.reply.celery.pidbox"


class Listener(Node):
    """The worker's end of the channel."""

    def handle_message(self, body: Any, message: Any = None) -> Any:
        """Answer a question that is known; log any other and forget it."""
        method = body.get("method") if isinstance(body, dict) else None
        if not isinstance(method, str) or method not in QUESTIONS:
            _log.warning("remote command refused", command=repr(body)[:100])
            return None
        destination = body.get("destination")
        asked = {
            "method": method,
            "reply_to": answer_place(body),
            "ticket": body.get("ticket"),
            "destination": destination if isinstance(destination, list) else None,
        }
        return super().handle_message(asked, message)


def answer_place(body: dict[str, Any]) -> dict[str, str] | None:
    """The list for the asker's answers, by the name of the asker; None if it has none."""
    place = body.get("reply_to")
    name = place.get("routing_key") if isinstance(place, dict) else None
    ticket = body.get("ticket")
    if not all(isinstance(one, str) and _NAME.fullmatch(one) for one in (name, ticket)):
        return None
    # Straight to the list: what the exchange's table in Redis says is anybody's word too.
    return {"exchange": "", "routing_key": _ANSWERS.format(name)}


class FleetMailbox(Mailbox):
    """Makes that listener."""

    node_cls = Listener


class FleetControl(Control):
    """What `app.control` is."""

    Mailbox = FleetMailbox
