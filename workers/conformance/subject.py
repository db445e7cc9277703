"""Wraps a live CSI driver for the checks, and deletes everything that the checks create."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.conformance.report import Broken, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from csi_client.client import CsiClient

GIB: Final = 2**30
# The status codes after which a caller simply has to retry.
TRY_AGAIN: Final = frozenset(
    {errors.ABORTED, errors.UNAVAILABLE, errors.DEADLINE_EXCEEDED, errors.CANCELLED}
)


@dataclass(slots=True)
class Subject:
    """The driver under test during one check.

    Attributes:
        client: a connected client of the driver.
        parameters: the parameters of the StorageClass.
        secrets: the data of the provisioner secret.
        size_bytes: the size of the volumes to create.
    """

    client: CsiClient
    parameters: Mapping[str, str]
    secrets: Mapping[str, str]
    size_bytes: int
    capabilities: frozenset[str]
    volumes: list[str] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)

    def need(self, *names: str) -> None:
        """Skip the check if the driver does not have these capabilities."""
        if missing := [name for name in names if name not in self.capabilities]:
            raise Skipped(f"the driver does not report {', '.join(missing)}")

    def name(self, kind: str = "volume") -> str:
        """Return a unique name."""
        return f"conformance-{kind}-{uuid.uuid4().hex}"

    def request(self, name: str, **fields: Any) -> csi.CreateVolumeRequest:
        """Return a minimal request for an RWO file system; `fields` override its fields.

        The requested size is `size_bytes`.
        """
        mode = csi.VolumeCapability.AccessMode(
            mode=csi.VolumeCapability.AccessMode.Mode.Value("SINGLE_NODE_WRITER")
        )
        capability = csi.VolumeCapability(
            mount=csi.VolumeCapability.MountVolume(), access_mode=mode
        )
        usual: dict[str, Any] = {
            "name": name,
            "capacity_range": csi.CapacityRange(required_bytes=self.size_bytes),
            "volume_capabilities": [capability],
            "parameters": dict(self.parameters),
            "secrets": dict(self.secrets),
        }
        return csi.CreateVolumeRequest(**(usual | fields))

    def create(self, name: str, **fields: Any) -> csi.Volume:
        """Call CreateVolume; the volume is deleted after the check."""
        answer = self.client.create_volume(self.request(name, **fields))
        self.volumes.append(answer.volume.volume_id)
        return answer.volume

    def create_patiently(self, name: str, tries: int = 20) -> csi.Volume:
        """Send the same request until there is a final response, as the provisioner does."""
        while True:
            try:
                return self.create(name)
            except CsiError as error:
                tries -= 1
                if error.code not in TRY_AGAIN or not tries:
                    raise

    def delete(self, volume_id: str) -> None:
        """Call DeleteVolume."""
        self.client.delete_volume(volume_id, dict(self.secrets))

    def snapshot(self, name: str, source: str) -> csi.Snapshot:
        """Call CreateSnapshot; the snapshot is deleted after the check."""
        request = csi.CreateSnapshotRequest(
            name=name, source_volume_id=source, secrets=dict(self.secrets)
        )
        answer = self.client.call(
            "Controller/CreateSnapshot", request, csi.CreateSnapshotResponse
        ).snapshot
        self.snapshots.append(answer.snapshot_id)
        return answer

    def delete_snapshot(self, snapshot_id: str) -> None:
        """Call DeleteSnapshot."""
        request = csi.DeleteSnapshotRequest(snapshot_id=snapshot_id, secrets=dict(self.secrets))
        self.client.call("Controller/DeleteSnapshot", request, csi.DeleteSnapshotResponse)

    def listed(self) -> list[str]:
        """Return the ids of all volumes, reading the list page by page."""
        pages = self.client.list_volumes()
        return [entry.volume.volume_id for page in pages for entry in page.entries]

    def refused(self, what: str, call: Callable[[], object], *codes: int) -> CsiError:
        """Run a call that must fail with one of the codes; without codes, accept any error."""
        try:
            call()
        except CsiError as error:
            if codes and error.code not in codes:
                wanted = " or ".join(errors.CODE_NAMES[code] for code in codes)
                raise Broken(f"{what} returned {error.code_name} instead of {wanted}") from None
            return error
        wanted = " or ".join(errors.CODE_NAMES[code] for code in codes) or "an error"
        raise Broken(f"{what} returned OK instead of {wanted}")

    def clean_up(self) -> None:
        """Delete what the check created; failures to delete are reported by other checks."""
        for snapshot_id in self.snapshots:
            with suppress(CsiError):
                self.delete_snapshot(snapshot_id)
        for volume_id in self.volumes:
            with suppress(CsiError):
                self.delete(volume_id)
