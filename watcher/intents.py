"""Bringing back attempts that only a ConfigMap remembers, after Redis lost its data.

Workers copy the record of a long or unfinished attempt into a ConfigMap of the system's own
namespace (M-010). Without this, a volume whose claim was deleted meanwhile would leak.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from workers.errors import ProvisionerError
from workers.kube.backoff import Backoff
from workers.observability.logging import get_logger
from workers.queue.keys import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources

_log = get_logger()

# As workers.provision.safekeeping writes them.
LABEL_INTENT: Final = "csi-fleet.io/intent"
NAME_PREFIX: Final = "csi-fleet-intent-"
FIELD_RECORD: Final = "record"


class Intents(Protocol):
    """The part of workers.queue.intents.IntentStore that is used here."""

    def get(self, domain: str) -> dict[str, Any] | None:
        """Return an intent."""

    def put(self, domain: str, intent: Mapping[str, Any]) -> None:
        """Write an intent."""


def restore_intents(resources: KubeResources, namespace: str, intents: Intents) -> list[Key]:
    """Write back every copied intent that Redis lacks; returns the keys that finish them.

    Safe to repeat and to run in two watchers: an intent that exists is newer than its copy, and
    one brought back after its end is found settled by the worker.

    Raises:
        ApiError: the ConfigMaps cannot be read.
        QueueUnavailable: Redis does not answer.
    """
    keys = []
    for config_map in resources.list_config_maps(namespace, LABEL_INTENT):
        name = config_map["metadata"]["name"]
        try:
            record, key = _read(config_map)
        except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            _log.warning(
                "copied intent is unreadable, look at it and delete it",
                config_map=f"{namespace}/{name}",
                err=str(error),
            )
            continue
        domain = name.removeprefix(NAME_PREFIX)
        if intents.get(domain) is None:
            intents.put(domain, record)
            keys.append(key)
    return keys


def _read(config_map: JsonObject) -> tuple[dict[str, Any], Key]:
    record = msgspec.json.decode(config_map["data"][FIELD_RECORD], type=dict[str, Any])
    return record, Key.parse(record["key"])


class Restorer:
    """Restores intents when asked, again and again until it worked.

    Args:
        restore: `restore_intents` with its arguments.
        add: takes the keys that finish what was restored.
        backoff: waits after failures.
    """

    def __init__(
        self,
        restore: Callable[[], list[Key]],
        add: Callable[[list[Key]], None],
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._restore = restore
        self._add = add
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._backoff = backoff or Backoff()
        self._is_failing = False

    def ask(self) -> None:
        """Restore soon; returns at once."""
        self._asked.set()

    def run(self) -> None:
        """Wait for `ask` until `stop`; never raises for what Redis or the API server do."""
        while self._asked.wait() and not self._stopped.is_set():
            # Cleared first: an `ask` during the work leads to another round.
            self._asked.clear()
            if not self._try() and not self._stopped.wait(self._backoff.next_seconds()):
                self._asked.set()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()
        self._asked.set()

    def _try(self) -> bool:
        try:
            keys = self._restore()
        except ProvisionerError as error:
            if not self._is_failing:
                _log.warning("cannot restore copied intents, trying again", err=str(error))
            self._is_failing = True
            return False
        self._is_failing = False
        if keys:
            _log.warning("attempts restored from ConfigMaps", count=len(keys))
        self._add(keys)
        self._backoff.reset()
        return True
