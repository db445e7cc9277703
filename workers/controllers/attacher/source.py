"""Which volume is an attachment about, in CSI's words (A-041 steps 1, 5 and 6, A-070)?

Pure. An attachment names a PV, or holds the PV spec of a volume that a pod wrote down in-tree.
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
    """Why an attach or detach failed, for the attachment's status.

    Args:
        message: the reference's words.
        code: gRPC status number of the driver's answer, None when it was not asked.
        is_missing: an object does not exist.
        is_heard: no call of ours runs on. Not so after a broken connection.
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
        spec: the PV's spec, translated where it was in-tree.
        is_migrated: it was, or it is an inline volume, which only migration makes (DA-018).
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
        """The driver's name of the volume."""
        return str(self.csi.get("volumeHandle") or "")

    @property
    def driver(self) -> str:
        """The driver that made it."""
        return str(self.csi.get("driver") or "")

    @property
    def secret(self) -> tuple[str, str] | None:
        """Namespace and name of the publish secret, for both directions (A-055)."""
        reference = self.csi.get("controllerPublishSecretRef")
        return (reference["namespace"], reference["name"]) if reference else None


def volume_name(attachment: JsonObject) -> str:
    """Name of the PV, "" for an inline volume.

    Raises:
        AttachError: both or no source, or an inline volume without a CSI source.
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
    """The volume that the attachment itself holds."""
    return Source(attachment["spec"]["source"]["inlineVolumeSpec"], is_migrated=True)


def volume_source(volume: JsonObject) -> Source:
    """The volume of a PV.

    Raises:
        AttachError: an in-tree volume that cannot be translated, or one without a CSI driver.
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
    """The other driver that a PV belongs to, migrated or not; "" when it is ours or nobody's.

    The reference sends such a volume's handle to the wrong driver (DA-032).
    """
    plugin = of_volume(volume)
    found = str((volume["spec"].get("csi") or {}).get("driver") or "")
    found = found if plugin is None else plugin.driver_name
    return found if found and found != driver else ""
