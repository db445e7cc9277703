"""Stores operators' pauses in a ConfigMap in csi-fleet's own namespace, one entry per pause.

The ConfigMap is the source of truth. `csi-fleet pause` and `resume` write it, and Redis mirrors it
(`workers.queue.pauses`). If the two differ, the state with the newer resourceVersion takes
precedence.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources

_log = get_logger(__name__)

NAME: Final = "csi-fleet-pauses"
DRIVER: Final = "driver"
CLASS: Final = "class"
# The characters to escape in a ConfigMap key. `_` would be allowed, but it starts our escapes.
_OTHERS: Final = re.compile(r"[^-.a-zA-Z0-9]")


@dataclass(frozen=True, slots=True)
class Recorded:
    """All pauses, as stored at one resourceVersion.

    Attributes:
        version: the resourceVersion of this state; `get` sets "0" if there is no ConfigMap.
        pauses: `driver NAME` or `class NAME` -> `until_ms reason`; an `until_ms` of 0 means that
            the pause has no end.
    """

    version: str
    pauses: dict[str, str] = field(default_factory=dict)


class PauseRecord:
    """Reads and writes the ConfigMap of the pauses. All methods that send a request raise ApiError.

    Args:
        kube: the client of the API server.
        namespace: the namespace of the ConfigMap.
    """

    def __init__(self, kube: KubeResources, namespace: str) -> None:
        self._kube = kube
        self.namespace = namespace

    def change(self, kind: str, name: str, reason: str, until_ms: int | None) -> dict[str, Any]:
        """Return the change that sets one entry, or that removes it if `until_ms` is None."""
        record = {"kind": kind, "name": name, "reason": reason, "until_ms": until_ms}
        return {_field(kind, name): None if until_ms is None else json.dumps(record)}

    def apply(self, change: dict[str, Any]) -> tuple[bool, Recorded]:
        """Change one entry; return whether it existed before, and all pauses after the change."""
        before = self._config_map()
        was_there = change.keys() <= (before.get("data") or {}).keys()
        if not was_there and None in change.values():
            return False, self._read(before)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "data": change}
        body["metadata"] = {"name": NAME, "namespace": self.namespace}
        return was_there, self._read(self._kube.apply_config_map(body))

    def get(self) -> Recorded:
        """Return all pauses, using GET, because workers have no permission to list."""
        return self._read(self._config_map())

    def _config_map(self) -> JsonObject:
        try:
            return self._kube.get(paths.CONFIG_MAPS, NAME, namespace=self.namespace)
        except NotFoundError:
            return {"metadata": {"resourceVersion": "0"}}

    def list(self) -> Recorded:
        """Return all pauses, using LIST, which gives a resourceVersion even without a ConfigMap."""
        path = paths.CONFIG_MAPS.path(namespace=self.namespace)
        found = self._kube.client.get(path, {"fieldSelector": f"metadata.name={NAME}"})
        if items := found.get("items"):
            return self._read(items[0])
        return Recorded(str(found["metadata"]["resourceVersion"]))

    def _read(self, config_map: JsonObject) -> Recorded:
        """Return the pauses in the ConfigMap; an unreadable entry is logged and skipped."""
        found = Recorded(str(config_map["metadata"]["resourceVersion"]))
        for name, text in (config_map.get("data") or {}).items():
            try:
                record = json.loads(text)
                pause = f"{int(record['until_ms'])} {record['reason']}"
                found.pauses[f"{record['kind']} {record['name']}"] = pause
            except (ValueError, KeyError, TypeError) as error:
                place = f"{self.namespace}/{NAME}"
                _log.warning(
                    "ignoring an unreadable pause in the ConfigMap",
                    config_map=place,
                    field=name,
                    err=error,
                )
        return found


def _field(kind: str, name: str) -> str:
    plain = _OTHERS.sub(lambda found: f"_{ord(found.group()):02x}", name)
    return f"{kind}.{plain}"
