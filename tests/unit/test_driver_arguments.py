"""Container arguments of real drivers, taken from their public manifests, must all parse.

docs/migration.md shows the same table; the test fails when the two differ.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.config.load import parse

DOCS = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
# The kubelet expands `$(ADDRESS)` and the like; here they have the values of the manifests.
ARGUMENTS = {
    "host-path": "-v=5 --csi-address=/csi/csi.sock --feature-gates=Topology=true",
    "NFS": "-v=2 --csi-address=/csi/csi.sock --leader-election",
    "AWS EBS": "--csi-address=/var/lib/csi/sockets/pluginproxy/csi.sock --v=2 "
    "--feature-gates=Topology=true --extra-create-metadata --leader-election=true "
    "--default-fstype=ext4",
    "GCE PD": "--v=5 --csi-address=/csi/csi.sock --feature-gates=Topology=true "
    "--http-endpoint=:22011 --leader-election-namespace=gce-pd-csi-driver --timeout=250s "
    "--extra-create-metadata --leader-election --default-fstype=ext4 "
    "--controller-publish-readonly=true",
    "Azure Disk": "--feature-gates=Topology=true --csi-address=/csi/csi.sock --v=2 --timeout=15s "
    "--leader-election --worker-threads=40 --extra-create-metadata=true --strict-topology=true",
    "Ceph RBD": "--csi-address=unix:///csi/csi-provisioner.sock --v=1 --timeout=150s "
    "--retry-interval-start=500ms --leader-election=true "
    "--feature-gates=HonorPVReclaimPolicy=true --prevent-volume-mode-conversion=true "
    "--default-fstype=ext4 --extra-create-metadata=true --immediate-topology=false "
    "--http-endpoint=10.0.0.5:8090",
}
ALL = pytest.mark.parametrize("driver", ARGUMENTS)


@ALL
@pytest.mark.parametrize("command", ["run", "worker"])
def test_dp005_arguments_of_the_driver_parse(driver, command):
    """An operator changes the image and the command, but no argument."""
    arguments = ARGUMENTS[driver].split()
    settings = parse(command, [*arguments, "--redis-url=redis://redis"], {})
    address = next(one for one in arguments if one.startswith("--csi-address="))
    assert settings.driver.csi_addresses == (address.partition("=")[2],)
    assert settings.arguments == ()
    for timeout in (one for one in arguments if one.startswith("--timeout=")):
        seconds = float(timeout.partition("=")[2].removesuffix("s"))
        assert settings.driver.timeout_seconds == seconds
    # Feature gates that Kubernetes has graduated or removed cause a warning, not an error.
    assert all("feature gate" in one for one in settings.warnings), settings.warnings


@ALL
def test_migration_guide_shows_the_same_arguments(driver):
    row = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| {driver} |"))
    assert f"`{ARGUMENTS[driver]}`" in row
