"""Feature gates and Lease names."""

from __future__ import annotations

import pytest

from workers.config.gates import FeatureGates
from workers.config.load import parse
from workers.engine.leasename import LeaseIdentity, lease_name


def gates(text):
    return parse("run", [f"--feature-gates={text}"], {})


def test_defaults():
    """F-003, P-700: without the flag, gates have the defaults of csi-provisioner."""
    assert parse("run", [], {}).gates == FeatureGates()
    assert parse("run", [], {}).gates == FeatureGates(
        topology=True, cross_namespace_volume_data_source=False,
        volume_attributes_class=True, release_leader_election_on_exit=False,
    )  # fmt: skip


def test_ga_gate_can_be_switched_with_a_warning():
    settings = gates("Topology=false, VolumeAttributesClass=true")
    assert not settings.gates.topology
    assert [w.split(":")[0] for w in settings.warnings] == [
        "setting GA feature gate Topology=false",
        "setting GA feature gate VolumeAttributesClass=true",
    ]


def test_alpha_gate_is_switched_silently():
    settings = gates("CrossNamespaceVolumeDataSource=true,ReleaseLeaderElectionOnExit=1")
    assert settings.gates.cross_namespace_volume_data_source
    assert settings.gates.release_leader_election_on_exit
    assert settings.warnings == ()


def test_gate_of_the_api_server_library_is_ignored_with_a_warning():
    settings = gates("WatchList=true,,APIServerTracing=false")
    assert settings.gates == FeatureGates(explicit=frozenset({"WatchList", "APIServerTracing"}))
    assert [w.split()[2] for w in settings.warnings] == ["WatchList", "APIServerTracing"]


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("Topologies", "is ignored; did you mean Topology?"),
        ("topology", "is ignored; did you mean Topology?"),
        ("VolumeAttributeClass", "is ignored; did you mean VolumeAttributesClass?"),
        ("WatchList", "is ignored"),
    ],
)
def test_a_gate_that_is_nearly_one_gets_a_hint(name, end):
    (warning,) = gates(f"{name}=true").warnings
    assert warning.endswith(end)


def test_all_alpha_sets_what_is_not_named():
    settings = gates("AllAlpha=true,ReleaseLeaderElectionOnExit=false,AllBeta=true")
    assert settings.gates.cross_namespace_volume_data_source
    assert not settings.gates.release_leader_election_on_exit
    assert settings.warnings == ()


@pytest.mark.parametrize(("text", "is_served", "expected"), [
    pytest.param("", False, False, id="C-144 not served, not named: off"),
    pytest.param("VolumeAttributesClass=true", False, True, id="C-144 named: on"),
    pytest.param("", None, True, id="C-144 discovery error: on"),
    pytest.param("", True, True, id="P-703 served: on"),
    pytest.param("VolumeAttributesClass=false", True, False, id="P-703 switched off: off"),
])  # fmt: skip
def test_attributes_class_after_discovery(text, is_served, expected):
    found = gates(text).gates.with_discovery(attributes_class_served=is_served)
    assert found.volume_attributes_class is expected


def test_p703_unchanged_gates_are_the_same_object():
    """The caller logs the message only when discovery changed a gate."""
    before = gates("VolumeAttributesClass=false").gates
    assert before.with_discovery(attributes_class_served=False) is before


@pytest.mark.parametrize(("driver", "lease"), [
    pytest.param("a/b.c_d-", "a-b-c-d-X", id="C-142 slash, dot, underscore, trailing dash"),
    pytest.param("hostpath.csi.k8s.io", "hostpath-csi-k8s-io", id="F-020 example"),
    pytest.param("é1", "-1", id="F-020 no letter of ASCII"),
    pytest.param("X.", "X-X", id="F-020 trailing dot"),
])  # fmt: skip
def test_lease_name(driver, lease):
    assert lease_name(driver) == lease


def test_f021_two_processes_of_one_host_differ():
    one, two = (LeaseIdentity("node.a", unique) for unique in "12")
    assert one.join("7f")
    assert two.join("7f")
    assert str(one) == "node-a_csi-fleet-7f-1"
    assert str(one) != str(two)
