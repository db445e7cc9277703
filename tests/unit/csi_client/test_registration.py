"""The registration socket as its owner sees it."""

from __future__ import annotations

from pathlib import Path

from csi_client.registration import RegistrationServer


def test_a_socket_that_was_removed_is_not_in_place(tmp_path: Path) -> None:
    """NR-014: so that a stop does not take away, or stumble over, what it did not put there."""
    server = RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
    assert not server.is_in_place()
    server.start()
    assert server.is_in_place()
    server.path.unlink()
    assert not server.is_in_place()
    server.stop()
