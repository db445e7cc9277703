"""SEC-2 for snapshots: A copy that no worker signed for this content is ignored."""

from __future__ import annotations

import msgspec

from tests.unit.controllers.snapshotter.test_crash_points import Life
from workers.controllers.snapshotter.intent import COPY_PREFIX, Intent
from workers.controllers.snapshotter.rules import KIND_CONTENTS
from workers.kube import paths
from workers.queue.keys import Key


def test_a_hand_made_copy_deletes_no_living_snapshot():
    life = Life([])
    life.live()
    assert life.world.content()["status"]["readyToUse"] is True
    record = {"key": "x", **Intent("snapshot-u1", ("h1",)).record()}
    metadata = {"name": f"{COPY_PREFIX}{KIND_CONTENTS}-nobody", "namespace": "fleet"}
    data = {"record": msgspec.json.encode(record).decode()}
    life.world.api.add(paths.CONFIG_MAPS, {"metadata": metadata, "data": data})
    life.world.run_content(Key(KIND_CONTENTS, "snap.test", "nobody"))
    assert life.storage.snapshots == {"snapshot-u1": "id-1"}
