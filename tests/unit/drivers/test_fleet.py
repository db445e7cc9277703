"""The set of drivers changes as a whole or not at all."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from csi_client.connection import TlsFiles
from workers.config.settings import Settings
from workers.drivers.driversfile import DriverSpec
from workers.drivers.fleet import Fleet
from workers.errors import ConfigError, DriverAway
from workers.queue.links import Place, Verdict


@pytest.fixture
def fleet():
    fleet = Fleet(Settings())
    yield fleet
    fleet.stop()


def specs(*endpoints, **changed):
    found = {path: DriverSpec(f"d{path}", path) for path in endpoints}
    return {spec.name: spec for spec in (found | changed).values()}


def test_one_unusable_endpoint_changes_nothing(fleet, tmp_path):
    """The last good set stays complete, even if the new set would have dropped a driver."""
    fleet.apply(specs("/a", "/b"))
    before = dict(fleet._links)
    lost = TlsFiles(tmp_path / "missing.pem")
    bad = DriverSpec("d/a", "storage:9000", tls=lost)
    with pytest.raises(ConfigError, match="missing"):
        fleet.apply(specs("/c", bad=bad))
    assert fleet._links == before
    fleet.apply(specs("/c"))
    assert list(fleet._links) == ["/c"]


def test_endpoints_may_be_exchanged(fleet):
    fleet.apply(specs("/a", "/b"))
    fleet.apply({"d/a": DriverSpec("d/a", "/b"), "d/b": DriverSpec("d/b", "/a")})
    assert {path: link.spec.name for path, link in fleet._links.items()} == {
        "/a": "d/b",
        "/b": "d/a",
    }


def test_a_longer_time_out_of_a_class_counts_at_once(fleet):
    """It needs no new connection; a reconcile must not end before the call that it allows."""
    fleet.apply(specs("/a"))
    before = fleet.longest_call()
    (link,) = fleet._links.values()
    longer = {"slow": {"create": 10 * before}}
    fleet.apply({"d/a": DriverSpec("d/a", "/a", class_timeouts=longer)})
    assert list(fleet._links.values()) == [link]
    assert fleet.longest_call() == 10 * before


def test_a_socket_given_beside_the_file_is_no_driver_of_the_file(fleet):
    fleet._links["/a"] = fleet._open(DriverSpec("", "/a", allow_tcp=False))
    with pytest.raises(ConfigError, match="/a is also given by --csi-address"):
        fleet.apply(specs("/a"))


def test_connections_tell_of_drivers_that_never_answered_and_of_no_dropped_ones(fleet):
    """Otherwise a wrong endpoint raises no alert, and a driver that was removed raises one."""
    fleet.apply(specs("/a", "/b"))
    assert fleet.connections() == {"d/a": False, "d/b": False}
    fleet.apply(specs("/a"))
    assert fleet.connections() == {"d/a": False}


@pytest.mark.parametrize(("lost", "is_told"), [(0, False), (1, True)], ids=["limits", "loss"])
def test_only_a_connection_that_was_lost_is_back(fleet, monkeypatch, lost, is_told):
    """New limits cause a handshake over the same connection."""
    told = []
    monkeypatch.setattr("workers.drivers.fleet._log.warning", lambda text, **_: told.append(text))
    monkeypatch.setattr(fleet, "announce", lambda *_: None)
    fleet.apply(specs("/a"))
    (link,) = fleet._links.values()
    for losses in (0, lost):
        link.shaking, link.shaking_losses = Future(), losses
        link.shaking.set_result(
            SimpleNamespace(name="d/a", queue_name="d/a", in_tree_name="", client=link.client)
        )
        fleet._shaken(link, None, None)
    assert told == ["reconnected to the driver"] * is_told


def test_a_word_about_the_replica_that_was_left_meanwhile_counts_for_no_other(fleet):
    """A thread that looks for another replica may switch while Redis answers."""
    spec = DriverSpec("two", "csi.svc:1", is_one_replica=True)
    fleet.apply({"two": spec})
    (link,) = fleet._links.values()
    replica = link.client.replica
    replica.address, place = "b", Place("a")
    assert not fleet._obey(link, Verdict(is_ours=True), place, replica.clock())
    with pytest.raises(DriverAway), replica.call(1):
        pass
    assert fleet._obey(link, Verdict(is_ours=True), link.place, replica.clock())
    with replica.call(1):
        pass
