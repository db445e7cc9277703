"""`make way`: the sequence of steps that it measures."""

from __future__ import annotations

from tests.bench.way import calls_of_a_claim, summary


def test_a_claim_is_walked_from_its_event_to_its_volume(redis_client):
    calls = calls_of_a_claim(redis_client)
    files = [call.file for call in calls]
    assert files[0] == "workers/kube/watch.py"
    assert "watcher/outbox.py" in files
    assert "workers/engine/frame.py" in files
    assert "workers/controllers/provisioner/claims.py" in files
    assert f"{len(set(files))} files" in summary(calls)
