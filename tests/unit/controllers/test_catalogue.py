"""The one list of controllers, and what is derived from it."""

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
    [("provisoner", "unknown controller provisoner; known are provisioner"), ("", "at least one")],
)
def test_a_mistaken_choice_is_one_clear_line(text, message):
    with pytest.raises(ConfigError, match=message):
        parse("run", [f"--controllers={text}"], {})


@pytest.mark.parametrize("name", [spec.name for spec in catalogue.SPECS])
def test_what_runs_a_controller_is_complete(name):
    """Its limits name all of its kinds; its spec is the catalogue's."""
    controller = load(name)
    assert controller.spec in catalogue.SPECS


def test_names_of_kinds_tasks_and_work_queues_are_unique():
    kinds = [kind for spec in catalogue.SPECS for kind in spec.kinds]
    for names in ("name", "task", "work_queue"):
        found = [getattr(kind, names) for kind in kinds]
        assert len(found) == len(set(found)), names


def test_the_list_is_light():
    """The watcher imports it: no gRPC, no Celery, no Redis."""
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
    """The image in place of the Go one, with unchanged arguments."""
    monkeypatch.delenv("CSI_FLEET_REDIS_URL", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found, argv = drop_in(arguments)
    assert (found, argv[:2]) == (command, ["--controllers=provisioner", "--v=5"])


def test_our_own_commands_stay_ours():
    assert drop_in(["status", "-o=json"]) == ("status", ["-o=json"])


@pytest.mark.parametrize("spec", catalogue.SPECS, ids=lambda spec: spec.name)
def test_a_part_explains_nothing_by_itself(spec):
    """`explain` asks every controller that has something to say."""
    assert (catalogue.explainer(spec.name) is None) == bool(spec.part_of)


def test_gates_are_those_of_the_go_programs():
    """F-003, A-101, R-121, SNC-100, SNS-100: name, stage and default."""
    groups = {("CSIVolumeGroupSnapshot", "GA", True)}
    assert {
        spec.name: found
        for spec in catalogue.SPECS
        if (found := {(gate.name, gate.stage, gate.default) for gate in spec.gates})
    } == {
        "provisioner": {
            ("Topology", "GA", True),
            ("CrossNamespaceVolumeDataSource", "ALPHA", False),
            ("VolumeAttributesClass", "GA", True),
        },
        "attacher": {("MutableCSINodeAllocatableCount", "BETA", True)},
        "resizer": {
            ("RecoverVolumeExpansionFailure", "GA", True),
            ("VolumeAttributesClass", "GA", True),
            ("AnnotateFsResize", "BETA", True),
        },
        "snapshotter": groups,
        "snapshot-controller": groups,
    }
