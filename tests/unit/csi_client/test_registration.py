"""The registration socket as its owner sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_client.registration import RegistrationError, RegistrationServer


def test_a_socket_that_was_removed_is_not_in_place(tmp_path: Path) -> None:
    """NR-014: so that a stop does not take away, or stumble over, what it did not put there."""
    server = RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
    assert not server.is_in_place()
    server.start()
    assert server.is_in_place()
    server.path.unlink()
    assert not server.is_in_place()
    server.stop()


def test_a_stop_takes_away_what_it_put_there_and_nothing_else(tmp_path: Path) -> None:
    """NR-014: a newer server under the same name stays."""
    old, new = (
        RegistrationServer(tmp_path / "reg.sock", "d", "/csi.sock", lambda *_: None)
        for _ in range(2)
    )
    old.start()
    new.start()
    old.stop()
    assert new.is_in_place()
    new.stop()
    assert list(tmp_path.iterdir()) == []
    new.stop()


def test_a_name_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """NRT-026: the hidden name beside it is shorter; nobody could reach the long one."""
    server = RegistrationServer(tmp_path / ("n" * 108), "d", "/csi.sock", lambda *_: None)
    with pytest.raises(RegistrationError, match="longer than 107 bytes"):
        server.start()
    assert list(tmp_path.iterdir()) == []
