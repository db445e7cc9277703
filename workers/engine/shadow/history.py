"""Reads the states that an object has had since a prediction, from the API server's short history.

A sidecar's write is often followed within milliseconds by a write of another component. The object
must be compared as the sidecar left it, not as it is at the next check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from workers.errors import ApiError

if TYPE_CHECKING:
    from workers.kube.client import KubeClient
    from workers.kube.objects import JsonObject

# The number of seconds after which the server ends the watch; it accepts no smaller value.
_SECONDS: Final = "1"


class History:
    """Reads an object's past states; both methods return an empty result if the states are lost."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def version(self, path: str) -> str:
        """Return the resourceVersion at which to start watching for an object to be created."""
        try:
            found = self._client.get(_collection(path), {"limit": "1"})
        except ApiError:
            return ""
        return str(found["metadata"].get("resourceVersion", ""))

    def states(self, path: str, version: str) -> list[JsonObject]:
        """Return the object after each write since `version`, oldest first; block for a second."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "fieldSelector": f"metadata.name={path.rpartition('/')[2]}",
            "timeoutSeconds": _SECONDS,
        }
        try:
            lines = self._client.request("GET", _collection(path), query=query).splitlines()
            changes = [msgspec.json.decode(line) for line in lines if line]
        except (ApiError, msgspec.DecodeError):
            return []
        return [one["object"] for one in changes if one["type"] in {"ADDED", "MODIFIED"}]


def _collection(path: str) -> str:
    return path.rpartition("/")[0]
