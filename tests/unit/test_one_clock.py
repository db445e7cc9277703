"""Which files may use the wall clock: none that decides how long something lasts.

Deadlines use the queue's clock (`workers/deadlines.py`, `Session` in workers/queue/leases.py), and
waits within a process use a monotonic clock. The files listed here write timestamps that people or
other programs read, or compare such a timestamp for a metric or a message.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALL = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.(now|utcnow)\(")
ALLOWED = {
    # Timestamps on objects, answers, logs, traces and names.
    "workers/controllers/health/controller.py",
    "workers/controllers/provisioner/intent.py",
    "workers/controllers/resizer/writing.py",
    "workers/controllers/snapshot_controller/work.py",
    "workers/controllers/snapshotter/content.py",
    "workers/controllers/snapshotter/creating.py",
    "workers/controllers/snapshotter/deleting.py",
    "workers/controllers/snapshotter/groups.py",
    "workers/controllers/snapshotter/querying.py",
    "workers/drivers/driver.py",
    "workers/drivers/standin.py",
    "workers/engine/election.py",
    "workers/engine/shadow/judging.py",
    "workers/engine/shadow/recording.py",
    "workers/kube/events.py",
    "workers/node/liveness.py",
    "workers/node/registrar.py",
    "workers/observability/tracing.py",
    # Metrics and texts: the age of an object.
    "workers/controllers/attacher/attach.py",
    "workers/controllers/attacher/explain.py",
    "workers/controllers/provisioner/claims.py",
    "workers/controllers/provisioner/measure.py",
    "workers/controllers/snapshot_controller/measure.py",
    "workers/explain/gather.py",
    "workers/explain/lasting.py",
    "workers/explain/words.py",
    # Operator commands, and the expiry that a token states.
    "workers/cli/audit.py",
    "workers/cli/certificates.py",
    "workers/cli/doctor.py",
    "workers/cli/explain.py",
    "workers/cli/fleetweb.py",
    "workers/cli/migrate.py",
    "workers/cli/pending.py",
    "workers/cli/pause.py",
    "workers/cli/snapshotaudit.py",
    "workers/cli/support_bundle.py",
    "workers/kube/kubeconfig.py",
}


def test_no_other_file_looks_at_the_wall_clock() -> None:
    """A listed file that no longer uses it must leave the list."""
    files = (
        path
        for name in ("workers", "watcher", "csi_client")
        for path in ROOT.glob(f"{name}/**/*.py")
    )
    found = {str(path.relative_to(ROOT)) for path in files if WALL.search(path.read_text("utf-8"))}
    assert found - ALLOWED == set(), "deadlines are of the queue's clock, see this file's head"
    assert ALLOWED - found == set()
