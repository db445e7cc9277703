"""The example directory driver with defects that can be switched on, one for each class of
mistakes.

`DEFECTS` maps each defect to the conformance check that must find it, and to a change of the
driver.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_client import messages as csi
from csi_client.client import CsiClient
from examples.directory_driver.attaching import Published
from examples.directory_driver.behaviour import Control
from examples.directory_driver.controller import DirectoryDriver
from examples.directory_driver.journal import Journal
from examples.directory_driver.server import start_server
from examples.directory_driver.storage import DirectoryStore, StorageError
from tests.support.waiting import wait_until

DEFECTS = {
    "forgets-names": "create-repeat",
    "forgets-after-lost-answer": "create-lost-answer",
    "races": "create-concurrent",
    "ignores-size": "create-other-size",
    "gives-less": "create-answer",
    "echoes-secrets": "create-secret-echo",
    "delete-not-found": "delete-unknown",
    "keeps-deleted": "delete-really",
    "drops-source": "clone-echo",
    "drops-topology": "topology-echo",
    "pages-overlap": "list-paging",
    "lies-about-capacity": "capability-honesty",
    "retakes-snapshots": "snapshot-repeat",
    "final-after-deadline": "create-deadline",
}
CAPABILITIES = (
    "CONTROLLER_SERVICE",
    "VOLUME_ACCESSIBILITY_CONSTRAINTS",
    "CREATE_DELETE_VOLUME",
    "LIST_VOLUMES",
    "GET_CAPACITY",
    "CREATE_DELETE_SNAPSHOT",
    "CLONE_VOLUME",
)


class BadDriver(DirectoryDriver):
    """A driver with some of the defects."""

    def __init__(self, root: Path, defects: set[str]) -> None:
        self.control = Control(root / "control.json")
        super().__init__(
            "bad.csi.example.org",
            DirectoryStore(root),
            self.control,
            CAPABILITIES,
            published=Published(root),
            segments={"zone": "z1"},
            node_id="node-1",
        )
        self.defects = defects
        self._numbers = itertools.count()
        self._racing: dict[str, int] = {}
        self._lock = threading.Lock()

    def has(self, defect: str) -> bool:
        return defect in self.defects

    def create_volume(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        if self.has("echoes-secrets") and not request.name:
            raise StorageError("INVALID_ARGUMENT", f"no name, secrets {dict(request.secrets)}")
        name = request.name
        known = self._store.find_volume(name) if name else None
        if self.has("forgets-names") and name:
            request.name = f"{name}-{next(self._numbers)}"
        if self.has("forgets-after-lost-answer") and known:
            raise StorageError("ALREADY_EXISTS", f"volume {name} exists")
        if self.has("final-after-deadline") and name:
            self._work_slowly(name)
        if self.has("races") and name and known is None:
            self._race(request)
        if self.has("ignores-size") and known:
            request.capacity_range.required_bytes = known.capacity_bytes
        wanted = csi.VolumeContentSource()
        wanted.CopyFrom(request.volume_content_source)
        answer = super().create_volume(request)
        if self.has("gives-less"):
            answer.volume.capacity_bytes //= 2
        if self.has("drops-source"):
            answer.volume.ClearField("content_source")
        if self.has("drops-topology"):
            answer.volume.ClearField("accessible_topology")
        return answer

    def _race(self, request: csi.CreateVolumeRequest) -> None:
        """Check whether the volume exists, wait, then create it, so that concurrent callers all
        create it."""
        with self._lock:
            self._racing[request.name] = number = self._racing.get(request.name, 0) + 1
        # Long enough for the other calls of one test to arrive.
        threading.Event().wait(0.2)
        if number > 1:
            request.name = f"{request.name}-{number}"

    def _work_slowly(self, name: str) -> None:
        """Answer with a final error if another call for the same name is running."""
        with self._lock:
            if self._racing.get(name):
                raise StorageError("INTERNAL", f"volume {name} is half made")
            self._racing[name] = 1
        end = time.monotonic() + 0.3
        threading.Event().wait(end - time.monotonic())
        with self._lock:
            self._racing[name] = 0

    def delete_volume(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        known = {one.volume_id for one in self._store.volumes()}
        if self.has("delete-not-found") and request.volume_id and request.volume_id not in known:
            raise StorageError("NOT_FOUND", f"volume {request.volume_id} does not exist")
        if self.has("keeps-deleted") and request.volume_id:
            return csi.DeleteVolumeResponse()
        return super().delete_volume(request)

    def list_volumes(self, request: csi.ListVolumesRequest) -> csi.ListVolumesResponse:
        if self.has("pages-overlap") and request.starting_token.isdecimal():
            volumes = self._store.volumes()
            start = int(request.starting_token)
            if start == len(volumes) - 1:  # the last page repeats the page before it
                answer = super().list_volumes(request)
                answer.entries[0].volume.volume_id = volumes[start - 1].volume_id
                return answer
        return super().list_volumes(request)

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        if self.has("lies-about-capacity"):
            raise StorageError("UNIMPLEMENTED", "not yet")
        return super().get_capacity(request)

    def create_snapshot(self, request: csi.CreateSnapshotRequest) -> csi.CreateSnapshotResponse:
        answer = super().create_snapshot(request)
        if self.has("retakes-snapshots"):
            answer.snapshot.creation_time.FromNanoseconds(time.time_ns())
        return answer


@contextmanager
def served(root: Path, socket: Path, *defects: str) -> Iterator[CsiClient]:
    """Yield a client of a driver with these defects, which runs in this process."""
    root.mkdir(parents=True, exist_ok=True)
    driver = BadDriver(root, set(defects))
    journal = Journal(root / "calls.jsonl", with_digests=False)
    server, _ = start_server(driver, driver.control, journal, f"unix://{socket}")
    client = CsiClient(str(socket))
    try:
        wait_until(lambda: client.wait_connected(1.0), 10, "the bad driver serves")
        yield client
    finally:
        client.close()
        server.stop(None).wait()
