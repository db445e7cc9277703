"""The arguments of real drivers' csi-provisioner containers start our worker without a change."""

from __future__ import annotations

import pytest

from tests.support.csi_driver import DirectoryDriver
from tests.support.fleet import Fleet
from tests.support.processes import free_port
from tests.unit.test_driver_arguments import ARGUMENTS


@pytest.mark.parametrize("name", ARGUMENTS)
def test_dp005_arguments_of_the_driver_provision(name, tmp_path, kubeconfig, scene):
    """Only flags that name a place on the node differ here: socket, port, Lease namespace."""
    places = {
        "--http-endpoint": f"127.0.0.1:{free_port()}",
        "--leader-election-namespace": scene.namespace,
    }
    flags = [
        f"{flag}={places[flag]}" if (flag := one.partition("=")[0]) in places else one
        for one in ARGUMENTS[name].split()
        if not one.startswith("--csi-address=")
    ]
    env = {"POD_NAMESPACE": scene.namespace}
    with DirectoryDriver() as driver:
        with Fleet(tmp_path / "fleet", kubeconfig, [driver], *flags, env=env) as fleet:
            scene.claim("data", scene.storage_class(driver.name))
            scene.wait_bound("data")
            assert "Traceback" not in fleet.log_text()
        assert [call.code for call in driver.calls("CreateVolume")] == ["OK"]
