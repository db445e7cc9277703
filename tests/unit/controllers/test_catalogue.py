"""The controller registry, and what is derived from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workers.__main__ import drop_in
from workers.config.load import parse
from workers.controllers import catalogue
from workers.engine.controller import load
from workers.errors import ConfigError


def test_the_default_is_the_provisioner_with_its_part():
    assert parse("run", [], {}).chosen == ("provisioner", "capacity")


def test_all_are_all_that_there_are():
    assert catalogue.choose("all") == catalogue.SPECS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("provisoner", "unknown controller provisoner; the known controllers are"),
        ("", "at least one"),
    ],
)
def test_a_mistaken_choice_is_one_clear_line(text, message):
    with pytest.raises(ConfigError, match=message):
        parse("run", [f"--controllers={text}"], {})


@pytest.mark.parametrize("name", [spec.name for spec in catalogue.SPECS])
def test_what_runs_a_controller_is_complete(name):
    """The limits name all of the controller's kinds, and its spec is in the registry."""
    controller = load(name)
    assert controller.spec in catalogue.SPECS


def test_names_of_kinds_tasks_and_work_queues_are_unique():
    kinds = [kind for spec in catalogue.SPECS for kind in spec.kinds]
    for names in ("name", "task", "work_queue"):
        found = [getattr(kind, names) for kind in kinds]
        assert len(found) == len(set(found)), names


def test_the_list_is_light():
    """The watcher imports the registry, which must not import gRPC, Celery or Redis."""
    code = (
        "import sys; from workers.config.load import parse; "
        "print({'grpc', 'celery', 'redis', 'google.protobuf'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert output.stdout.decode().strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "environ", "command"),
    [
        (["csi-provisioner", "--v=5"], {}, "run"),
        (["csi-provisioner", "--v=5", "--redis-url=redis://r"], {}, "worker"),
        (["csi-provisioner", "--v=5"], {"CSI_FLEET_REDIS_URL": "redis://r"}, "worker"),
        (["--v=5"], {}, "run"),
    ],
)
def test_a_sidecars_command_is_its_controller_alone(arguments, environ, command, monkeypatch):
    """The image replaces the Go sidecar's image with unchanged arguments."""
    monkeypatch.delenv("CSI_FLEET_REDIS_URL", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found, argv = drop_in(arguments)
    assert (found, argv[:2]) == (command, ["--controllers=provisioner", "--v=5"])


def test_our_own_commands_stay_ours():
    assert drop_in(["status", "-o=json"]) == ("status", ["-o=json"])


@pytest.mark.parametrize("spec", catalogue.SPECS, ids=lambda spec: spec.name)
def test_a_part_explains_nothing_by_itself(spec):
    """`explain` calls every controller that has an explainer."""
    assert (catalogue.explainer(spec.name) is None) == bool(spec.part_of)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("csi-provisioner", "provisioner"),
        ("csi-resizer", "resizer"),
        ("csi-snapshotter", "snapshotter"),
        ("snapshot-controller", "snapshot-controller"),
        ("csi-attacher", "attacher"),
        ("volume-data-source-validator", "data-source-validator"),
        ("csi-external-health-monitor-controller", "health"),
        ("livenessprobe", None),
        ("", None),
    ],
)
def test_programs_that_are_stood_in_for(program, name):
    """Each Go program corresponds to one controller; a part has no program."""
    found = catalogue.program(program)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("provisioner", ("claims", "volumes", "cloning", "sweep", "capacity")),
        ("capacity", ("capacity",)),
        ("resizer", ("changes",)),
        ("snapshotter", ("contents", "group-contents")),
        (
            "attacher",
            (
                *("attachments", "detachments", "forced-attachments"),
                *("attach-finalizers", "reconcile-attachments"),
            ),
        ),
    ],
)
def test_a_lease_holds_the_kinds_of_its_controller_and_parts(name, kinds):
    """A-007: The Lease of a driver's sidecar covers these driver queues and no others."""
    (spec,) = catalogue.specs([name])
    assert catalogue.kinds_with_parts(spec) == kinds
    assert set(kinds) <= set(catalogue.driver_kinds())


def test_controllers_by_their_names():
    """The order is the registry's; unknown names are ignored."""
    found = catalogue.specs(["attacher", "capacity", "nobody"])
    assert [spec.name for spec in found] == ["capacity", "attacher"]
    assert catalogue.specs([]) == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("provisioner", ["provisioner", "capacity"]),
        ("attacher", ["attacher"]),
        (" attacher , resizer ,", ["resizer", "attacher"]),
        ("resizer,resizer", ["resizer"]),
        ("attacher,all", [spec.name for spec in catalogue.SPECS]),
    ],
)
def test_chosen_controllers_bring_their_parts(text, names):
    """A part can be neither chosen nor left out."""
    assert [spec.name for spec in catalogue.choose(text)] == names


def test_a_part_is_no_choice():
    with pytest.raises(ConfigError, match="unknown controller capacity"):
        catalogue.choose("capacity")


def test_the_lane_of_each_driver_call():
    """Limits and timeouts are set per operation and apply to that operation's driver queue."""
    assert catalogue.lanes() == {
        "create": "claims",
        "delete": "volumes",
        "capacity": "capacity",
        "expand": "changes",
        "modify": "changes",
        "snapshot": "contents",
        "delete-snapshot": "contents",
        "group-snapshot": "group-contents",
        "attach": "attachments",
        "detach": "detachments",
        "list-volume-health": "health",
        "get-volume-health": "health",
        "list-volumes": "health",
        "get-volume": "health",
    }


def test_gates_are_those_of_the_go_programs():
    """F-003, A-101, R-121, SNC-100, SNS-100: Each gate has the same name, stage and default."""
    topology = ("VolumeSnapshotTopology", "ALPHA", False)
    snapshots = {("CSIVolumeGroupSnapshot", "GA", True), topology}
    assert {
        spec.name: found
        for spec in catalogue.SPECS
        if (found := {(gate.name, gate.stage, gate.default) for gate in spec.gates})
    } == {
        "provisioner": {
            ("Topology", "GA", True),
            ("CrossNamespaceVolumeDataSource", "ALPHA", False),
            ("VolumeAttributesClass", "GA", True),
            topology,
        },
        "attacher": {("MutableCSINodeAllocatableCount", "BETA", True)},
        "resizer": {
            ("RecoverVolumeExpansionFailure", "GA", True),
            ("VolumeAttributesClass", "GA", True),
            ("AnnotateFsResize", "BETA", True),
        },
        "snapshotter": snapshots,
        "snapshot-controller": snapshots,
    }
