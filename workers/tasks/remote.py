"""Reduces Celery's remote control to the read-only commands that Flower needs.

In Celery, the response to a command is sent to the list that the command names. So any client that
can publish to the workers' channel could make a worker write to any key, with the permissions of
the worker's Celery connection. Here, a worker responds only to known commands, ignores their
arguments, and writes only to lists for responses. The rate of responses is limited, and each list
expires `ANSWER_SECONDS` after its first response. So nobody can fill Redis, however many commands
are sent.
"""

from __future__ import annotations

import re
import time
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
"""The commands that Flower sends; the only command with an effect makes a worker report its tasks.
"""

ANSWER_SECONDS: Final = 10
ANSWERS_AT_ONCE: Final = 30
"""The largest burst of responses: Flower sends ten commands for each worker that it shows."""
ANSWERS_PER_SECOND: Final = 3.0

_NAME: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANSWERS: Final = "{}.reply.celery.pidbox"


class Listener(Node):
    """The worker's end of the channel for remote commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left, self._counted_at = float(ANSWERS_AT_ONCE), time.monotonic()

    def handle_message(self, body: Any, message: Any = None) -> Any:
        """Forward a known command without its arguments; log and drop any other message."""
        method = body.get("method") if isinstance(body, dict) else None
        if not isinstance(method, str) or method not in QUESTIONS:
            if self._may_speak():
                _log.warning("refused a remote control command", command=repr(body)[:100])
            return None
        destination = body.get("destination")
        asked = {
            "method": method,
            "reply_to": answer_place(body),
            "ticket": body.get("ticket"),
            "destination": destination if isinstance(destination, list) else None,
        }
        return super().handle_message(asked, message)

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """Respond to a command unless this worker has recently responded to too many."""
        return super().dispatch(*args, **kwargs) if self._may_speak() else None

    def reply(
        self, data: Any, exchange: Any, routing_key: str, ticket: Any, **options: Any
    ) -> None:
        """Put the response into the client's list, which Redis deletes after `ANSWER_SECONDS`."""
        super().reply(data, exchange, routing_key, ticket, **options)
        channel: Any = self.channel
        with channel.conn_or_acquire() as client:
            client.expire(routing_key, ANSWER_SECONDS, nx=True)

    def _may_speak(self) -> bool:
        now = time.monotonic()
        gained = (now - self._counted_at) * ANSWERS_PER_SECOND
        self._left, self._counted_at = min(ANSWERS_AT_ONCE, self._left + gained), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def answer_place(body: dict[str, Any]) -> dict[str, str] | None:
    """Return the list for responses, named after the client; None for an invalid request."""
    place = body.get("reply_to")
    name = place.get("routing_key") if isinstance(place, dict) else None
    ticket = body.get("ticket")
    if not all(isinstance(one, str) and _NAME.fullmatch(one) for one in (name, ticket)):
        return None
    # The response goes directly to the list, because the bindings of an exchange are in Redis,
    # where other clients can change them.
    return {"exchange": "", "routing_key": _ANSWERS.format(name)}


class FleetMailbox(Mailbox):
    """A mailbox that creates `Listener`s."""

    node_cls = Listener


class FleetControl(Control):
    """The class of `app.control`, with its own mailbox."""

    Mailbox = FleetMailbox
