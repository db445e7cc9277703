"""How does an operator's pause outlive Redis?

One ConfigMap in the system's namespace holds every pause in force, an entry each. The commands
write it; workers read it before they declare limits to a Redis they have not met before, and
without limits nothing is admitted. So no key of a paused driver gets through between the loss and
the restoration. Conflicts are settled by time in Redis (`workers.queue.pauses`).
"""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError
from workers.observability.logging import get_logger
from workers.queue.pauses import Said

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.kube.resources import KubeResources
    from workers.queue.pauses import Pauses

_log = get_logger(__name__)

NAME: Final = "csi-fleet-pauses"
DRIVER: Final = "driver"
CLASS: Final = "class"
# One reading serves all lanes of a driver, and all drivers that are announced together.
CACHE_SECONDS: Final = 1.0
# What may stand in a key of a ConfigMap beside letters and digits, but for the sign of our own.
_OTHERS: Final = re.compile(r"[^-.a-zA-Z0-9]")


@dataclass(frozen=True, slots=True)
class Copy:
    """One pause.

    Args:
        kind: `driver` or `class`.
        name: of it; a driver's own, whatever its queues are called.
    """

    kind: str
    name: str
    said: Said


class PauseCopies:
    """The ConfigMap. Methods raise ApiError.

    Args:
        kube: API server.
        namespace: the system's.
    """

    def __init__(self, kube: KubeResources, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    def keep(self, copy: Copy) -> None:
        """Write or replace one."""
        said = copy.said
        record = {
            "kind": copy.kind,
            "name": copy.name,
            "reason": said.reason,
            "until_ms": said.until_ms,
            "said_ms": said.said_ms,
        }
        self._kube.apply_config_map(self._body({_field(copy.kind, copy.name): json.dumps(record)}))

    def drop(self, kind: str, name: str) -> None:
        """Remove one; it is fine when there is none."""
        if _field(kind, name) in self._data():
            self._kube.apply_config_map(self._body({_field(kind, name): None}))

    def all(self) -> list[Copy]:
        """Every pause; what cannot be read is reported and left out."""
        found = []
        for field, text in self._data().items():
            try:
                record = json.loads(text)
                said = Said(str(record["reason"]), int(record["until_ms"]), int(record["said_ms"]))
                found.append(Copy(str(record["kind"]), str(record["name"]), said))
            except (ValueError, KeyError, TypeError) as error:
                place = f"{self._namespace}/{NAME}"
                _log.warning("pause is unreadable", config_map=place, field=field, err=error)
        return found

    def _data(self) -> dict[str, str]:
        try:
            found = self._kube.get(paths.CONFIG_MAPS, NAME, namespace=self._namespace)
        except NotFoundError:
            return {}
        return dict(found.get("data") or {})

    def _body(self, data: dict[str, str | None]) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": data,
        }


class PauseRestorer:
    """Brings pauses back into Redis, lane by lane, before anything of the lane is admitted.

    Args:
        copies: what the API server remembers.
        pauses: of the queue's Redis.
        clock: seconds.
    """

    def __init__(
        self,
        copies: PauseCopies,
        pauses: Pauses,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._copies = copies
        self._pauses = pauses
        self._clock = clock
        self._lock = threading.Lock()
        self._known: list[Copy] = []
        self._read_at = float("-inf")
        self._is_refused = False

    def restore(self, lane: str) -> None:
        """Restore what concerns a lane; call before its limits are declared.

        Raises:
            ApiError: nobody knows what is paused; declare nothing yet.
            QueueUnavailable: Redis does not answer.
        """
        queue_name = lane.partition("|")[2]
        names = {queue_name, queue_name.partition("@")[0]}  # with @node in node deployment
        for copy in self._read():
            if copy.kind == CLASS:
                is_restored = self._pauses.restore_class(copy.name, copy.said)
            elif copy.name in names:
                is_restored = self._pauses.restore_driver(queue_name, copy.said)
            else:
                continue
            if is_restored:
                _log.warning("pause is restored", kind=copy.kind, name=copy.name)

    def _read(self) -> list[Copy]:
        with self._lock:
            if self._clock() - self._read_at >= CACHE_SECONDS:
                try:
                    self._known = self._copies.all()
                except ForbiddenError as error:
                    # An installation with roles of before; its work must not stand still.
                    if not self._is_refused:
                        _log.error("pauses are not restored after a loss of Redis", err=error)
                    self._is_refused = True
                self._read_at = self._clock()
            return self._known


def _field(kind: str, name: str) -> str:
    plain = _OTHERS.sub(lambda found: f"_{ord(found.group()):02x}", name)
    return f"{kind}.{plain}"
