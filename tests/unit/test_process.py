"""A sidecar's container may have a read-only root: no file has to be writable (OPS-6)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from workers import process
from workers.config import load


def settings(directory):
    return SimpleNamespace(process=SimpleNamespace(state_dir=str(directory)))


@pytest.mark.parametrize("place", ["absent", "file/below"])
def test_a_part_is_ready_where_it_can_write_no_file(tmp_path, place):
    """The process keeps its readiness in memory; another process would look for the file."""
    (tmp_path / "file").touch()
    directory = tmp_path / place
    check = process.ready_file(str(directory), "worker.ready")
    assert check() == "waiting for worker.ready"
    process.mark_ready(settings(directory), "worker.ready")
    assert check() == ""
    assert not directory.exists()


def test_liveness_is_not_told_where_nothing_is_writable(tmp_path, monkeypatch):
    """Otherwise the write would fail every five seconds."""
    monkeypatch.setattr(process, "Loop", None)
    process.tell_liveness(settings(tmp_path / "absent"), lambda: "")


def test_a_place_for_files_without_a_temporary_directory(monkeypatch):
    """Every container has /dev/shm."""

    def none():
        raise FileNotFoundError

    monkeypatch.setattr(load.tempfile, "gettempdir", none)
    assert load.temporary({}) == Path("/dev/shm")
    assert load.temporary({"TMPDIR": "/t"}) == Path("/t")
    assert load.parse("worker", ["--csi-address=/x", "--redis-url=redis://r"], {})
