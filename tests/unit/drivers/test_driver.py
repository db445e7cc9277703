"""The handshake with a driver (P-004 to P-010, T-190 to T-192)."""

from __future__ import annotations

import pytest

from csi_client.errors import CsiError, NoStatusError
from csi_client.messages import NodeGetInfoResponse
from workers.config.settings import Settings
from workers.drivers import fleet
from workers.drivers.driver import handshake, wait_ready
from workers.errors import ConfigError


class Client:
    """A client whose attributes hold the planned answers; exceptions are raised."""

    def __init__(self, **answers):
        self.answers = {
            "probe": [True],
            "plugin_info": [("d.example.org", "1")],
            "plugin_capabilities": [frozenset({"CONTROLLER_SERVICE"})],
            "controller_capabilities": [frozenset({"CREATE_DELETE_VOLUME"})],
            "node_info": [NodeGetInfoResponse()],
        } | {name: list(values) for name, values in answers.items()}

    def __getattr__(self, name):
        def call():
            answer = self.answers[name].pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def test_t190_probe_is_repeated_until_ready():
    """P-004: the answers are not ready, a timeout, and ready."""
    said = []
    client = Client(probe=[False, CsiError(4, "context deadline exceeded"), True])
    wait_ready(client, said.append, tick_seconds=0)
    assert said == ["CSI driver is not ready", "CSI driver probe timed out"]


@pytest.mark.parametrize("code", [1, 2, 5, 12, 13, 14])
def test_t191_any_other_probe_error_ends_the_start(code):
    with pytest.raises(ConfigError, match="CSI driver probe failed: rpc error") as caught:
        wait_ready(Client(probe=[CsiError(code, "no")]), print, tick_seconds=0)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        pytest.param(
            {"plugin_info": [NoStatusError("driver name is empty")]},
            "Error getting CSI driver name: driver name is empty",
            id="T-192 empty name",
        ),
        pytest.param(
            {"plugin_info": [CsiError(13, "boom")]},
            "Error getting CSI driver name: rpc error: code = Internal desc = boom",
            id="T-192 GetPluginInfo error",
        ),
        pytest.param(
            {"plugin_capabilities": [CsiError(12, "no")]},
            "Error getting CSI driver capabilities: rpc error: code = Unimplemented desc = no",
            id="plugin capabilities",
        ),
        pytest.param(
            {"controller_capabilities": [CsiError(12, "no")]},
            "Error getting CSI driver capabilities: rpc error: code = Unimplemented desc = no",
            id="controller capabilities",
        ),
    ],
)
def test_t192_a_failed_handshake_is_fatal(answers, text):
    """P-005, P-006, F-014: the process exits with code 255."""
    with pytest.raises(ConfigError) as caught:
        handshake(Client(**answers), Settings())
    assert str(caught.value) == text
    assert caught.value.exit_code == 255


@pytest.mark.parametrize("name", ["attacher", "resizer", "snapshotter"])
@pytest.mark.parametrize("call", ["plugin_info", "controller_capabilities"])
def test_a003_the_other_sidecars_end_with_1(name, call):
    """A-003, R-003, SNS-110: a plain exit without the fatal log line of csi-provisioner."""
    with pytest.raises(ConfigError) as caught:
        handshake(Client(**{call: [CsiError(13, "boom")]}), Settings(chosen=(name,)))
    assert caught.value.exit_code == 1


def test_a_good_handshake_names_the_driver():
    driver = handshake(Client(), Settings())
    assert (driver.name, driver.queue_name) == ("d.example.org", "d.example.org")
    assert driver.identity.endswith("-d.example.org")
    assert driver.supports("CREATE_DELETE_VOLUME")
    assert not driver.supports_topology


def test_c140_a_driver_that_never_comes_ends_the_start(tmp_path, monkeypatch):
    """F-011: after 30 s there is one line of output and exit code 1."""
    assert fleet.CONNECT_TIMEOUT_SECONDS == 30
    monkeypatch.setattr(fleet, "CONNECT_TIMEOUT_SECONDS", 0.2)
    served = fleet.Fleet(Settings())
    try:
        with pytest.raises(ConfigError, match="no driver answered within") as caught:
            served.connect(str(tmp_path / "none.sock"))
    finally:
        served.stop()
    assert caught.value.exit_code == 1


def test_c140_a_driver_that_is_not_ready_for_a_minute_is_waited_for():
    """F-012: one Probe is sent per second, forever."""
    said = []
    wait_ready(Client(probe=[False] * 60 + [True]), said.append, tick_seconds=0)
    assert said == ["CSI driver is not ready"] * 60


def test_c140_probe_unimplemented_ends_the_start():
    with pytest.raises(ConfigError, match="code = Unimplemented") as caught:
        wait_ready(Client(probe=[CsiError(12, "no such call")]), print, tick_seconds=0)
    assert caught.value.exit_code == 1
