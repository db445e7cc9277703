"""Finds the volume of an attachment, as a CSI source (A-041 steps 1, 5 and 6, A-070).

Pure. An attachment names a PV, or contains the PV spec of a migrated volume defined in a pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.controllers.attacher import texts
from workers.errors import AttemptError
from workers.migration.plugins import in_tree_source, of_volume
from workers.migration.to_csi import volume_to_csi

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.kube.objects import JsonObject


class AttachError(Exception):
    """An attach or detach failed; the message goes into the attachment's status.

    Args:
        message: csi-attacher's literal text where it has one.
        code: gRPC status number of the driver's answer, None if the driver was not called.
        is_missing: a required object does not exist.
        is_heard: no call is in flight. False after a broken connection.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        is_missing: bool = False,
        is_heard: bool = True,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.is_missing = is_missing
        self.is_heard = is_heard


@dataclass(frozen=True, slots=True)
class Source:
    """A PV spec with a CSI source.

    Attributes:
        spec: the PV's spec, translated to CSI if it was in-tree.
        is_migrated: it was in-tree, or is inline; only migration makes inline volumes (DA-018).
    """

    spec: Mapping[str, Any]
    is_migrated: bool = False

    @property
    def csi(self) -> Mapping[str, Any]:
        """The CSI source."""
        found: Mapping[str, Any] = self.spec["csi"]
        return found

    @property
    def handle(self) -> str:
        """The volume's id in the driver."""
        return str(self.csi.get("volumeHandle") or "")

    @property
    def driver(self) -> str:
        """The name of the volume's driver."""
        return str(self.csi.get("driver") or "")

    @property
    def secret(self) -> tuple[str, str] | None:
        """Namespace and name of the publish secret, used for publish and unpublish (A-055)."""
        reference = self.csi.get("controllerPublishSecretRef")
        return (reference["namespace"], reference["name"]) if reference else None


def volume_name(attachment: JsonObject) -> str:
    """Name of the PV, "" for an inline volume.

    Raises:
        AttachError: there are both sources or none, or the inline volume has no CSI source.
    """
    source = attachment["spec"].get("source") or {}
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    if name is not None and inline is not None:
        raise AttachError(texts.BOTH_SOURCES)
    if inline is not None:
        if not inline.get("csi"):
            raise AttachError(texts.INLINE_WITHOUT_CSI)
        return ""
    if name is None:
        raise AttachError(texts.NO_SOURCE)
    return str(name)


def inline_source(attachment: JsonObject) -> Source:
    """The volume that the attachment itself contains."""
    return Source(attachment["spec"]["source"]["inlineVolumeSpec"], is_migrated=True)


def volume_source(volume: JsonObject) -> Source:
    """The volume of a PV.

    Raises:
        AttachError: an in-tree volume cannot be translated, or there is no CSI source.
    """
    is_migrated = in_tree_source(volume) is not None
    if is_migrated:
        try:
            volume = volume_to_csi(volume)
        except AttemptError as error:
            raise AttachError(f"failed to translate in tree pv to CSI: {error.message}") from error
    if not volume["spec"].get("csi"):
        raise AttachError(texts.NO_CSI_SOURCE)
    return Source(volume["spec"], is_migrated=is_migrated)


def foreign_driver(volume: JsonObject, driver: str) -> str:
    """The other driver that a PV belongs to, migrated or not; "" if it is `driver` or none.

    csi-attacher sends such a volume's handle to the wrong driver (DA-032).
    """
    plugin = of_volume(volume)
    found = str((volume["spec"].get("csi") or {}).get("driver") or "")
    found = found if plugin is None else plugin.driver_name
    return found if found and found != driver else ""
