"""The states that an object went through since a prediction, of which the API server knows a while.

A sidecar's write is often followed by one of somebody else, within milliseconds: what counts is the
object as the sidecar left it, not as it is at the next look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from workers.errors import ApiError

if TYPE_CHECKING:
    from workers.kube.client import KubeClient
    from workers.kube.objects import JsonObject

# The server ends the watch then; shorter it cannot be told.
_SECONDS: Final = "1"


class History:
    """Asks the API server; both methods answer with nothing when it does not know any more."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def version(self, path: str) -> str:
        """From where the states of an object that is not there yet can be read later."""
        try:
            found = self._client.get(_collection(path), {"limit": "1"})
        except ApiError:
            return ""
        return str(found["metadata"].get("resourceVersion", ""))

    def states(self, path: str, version: str) -> list[JsonObject]:
        """What it was after each write since `version`, oldest first; blocks for a second."""
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
