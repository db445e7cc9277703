"""Reports the health of volumes, in the calls of CSI 1.13 or as VolumeCondition of CSI 1.12.

The file `health.json` is read again on every call. It maps a volume id to the volume's conditions:

```
{"vol-1": [{"status": "DEGRADED", "reason": "SlowDisk", "message": "text"}]}
```

The capabilities LIST_VOLUME_HEALTH and GET_VOLUME_HEALTH serve it by CSI 1.13; VOLUME_CONDITION,
with LIST_VOLUMES or GET_VOLUME, by CSI 1.12, where the first condition's message is the text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from csi_client import messages as csi

if TYPE_CHECKING:
    from pathlib import Path

    from examples.directory_driver.storage import DirectoryStore


class Reporting:
    """ControllerListVolumeHealth, ControllerGetVolumeHealth and the VolumeCondition of 1.12."""

    _store: DirectoryStore
    _health: Path | None

    def controller_list_volume_health(
        self, request: csi.ControllerListVolumeHealthRequest
    ) -> csi.ControllerListVolumeHealthResponse:
        """Return one page of the volumes that have a condition."""
        self._require("LIST_VOLUME_HEALTH")
        known = self._conditions()
        ids = [one.volume_id for one in self._store.volumes() if known.get(one.volume_id)]
        start = int(request.starting_token or 0)
        end = start + (request.max_entries or len(ids))
        return csi.ControllerListVolumeHealthResponse(
            entries=[_message(one, known[one]) for one in ids[start:end]],
            next_token=str(end) if end < len(ids) else "",
        )

    def controller_get_volume_health(
        self, request: csi.ControllerGetVolumeHealthRequest
    ) -> csi.ControllerGetVolumeHealthResponse:
        """Return the conditions of one volume."""
        self._require("GET_VOLUME_HEALTH")
        volume_id = self._store.volume(request.volume_id).volume_id
        health = _message(volume_id, self._conditions().get(volume_id, []))
        return csi.ControllerGetVolumeHealthResponse(volume_health=health)

    def _condition(self, volume_id: str) -> csi.VolumeCondition | None:
        """Return a volume's condition by CSI 1.12; None if the driver does not report it."""
        if not self._has("VOLUME_CONDITION"):
            return None
        found = self._conditions().get(volume_id, [])
        text = found[0].get("message", "") if found else "the volume is healthy"
        return csi.VolumeCondition(abnormal=bool(found), message=text)

    def _conditions(self) -> dict[str, list[dict[str, Any]]]:
        try:
            content = json.loads(self._health.read_text()) if self._health else {}
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _has(self, capability: str) -> bool:
        raise NotImplementedError

    def _require(self, capability: str) -> None:
        raise NotImplementedError


def _message(volume_id: str, conditions: list[dict[str, Any]]) -> csi.VolumeHealth:
    content = {"volume_id": volume_id, "health_statuses": conditions}
    return json_format.ParseDict(content, csi.VolumeHealth())
