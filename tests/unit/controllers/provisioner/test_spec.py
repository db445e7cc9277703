"""The provisioner's spec: its flags, their values per driver, and the resources to watch."""

from __future__ import annotations

import pytest

from workers.controllers.provisioner.spec import FLAGS, SPEC, UID_LENGTH
from workers.kube import paths

# Each flag's name, default, and whether the drivers file can set it per driver.
TABLE = {
    "timeout": ("10s", True),
    "volume-name-prefix": ("pvc", True),
    "volume-name-uuid-length": ("-1", True),
    "default-fstype": ("", True),
    "extra-create-metadata": ("false", True),
    "claim-labels-to-pv": ("", True),
    "claim-labels-to-driver": ("", True),
    "claim-annotations-to-driver": ("", True),
    "controller-publish-readonly": ("false", True),
    "prevent-volume-mode-conversion": ("true", True),
    "strict-topology": ("false", True),
    "immediate-topology": ("true", True),
    "retry-interval-start": ("1s", True),
    "retry-interval-max": ("5m", True),
    "worker-threads": ("100", True),
    "cloning-protection-threads": ("1", True),
    "snapshot-orphan-sweep-interval": ("5m", False),
    "node-deployment": ("false", False),
    "node-deployment-immediate-binding": ("true", False),
    "node-deployment-base-delay": ("20s", False),
    "node-deployment-max-delay": ("60s", False),
}


def test_flags_have_the_references_defaults_and_drivers_their_own_values():
    """The flags of the sweep and of node deployment apply to the whole process."""
    assert {flag.name: (flag.default, flag.per_driver) for flag in FLAGS} == TABLE


@pytest.mark.parametrize(
    ("length", "is_taken"),
    [(-2, False), (-1, True), (0, False), (1, True), (2, True), (32, True), (33, False)],
)
def test_p121_a_uid_is_kept_whole_or_to_32_characters(length, is_taken):
    """A UID has 32 characters without its dashes; with a length of 0 all names would be equal."""
    assert UID_LENGTH.is_met(length) is is_taken


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("", True),
        ("team,example.org/tier,app.kubernetes.io/name", True),
        (",".join(f"k{one}" for one in range(16)), True),
        (",".join(f"k{one}" for one in range(17)), False),
        ("topology.kubernetes.io/zone", False),
        ("failure-domain.beta.kubernetes.io/region", False),
    ],
)
def test_a_tenant_does_not_choose_what_the_scheduler_reads_of_a_volume(text, is_taken):
    """The number of keys is limited too, so requests and PVs stay small."""
    flag = next(one for one in FLAGS if one.name == "claim-labels-to-pv")
    assert (flag.problem(flag.parse(text)) == "") is is_taken


def record(**more):
    return {"name": "d", "queue_name": "d", **more}


PLAIN = record()
TOPOLOGY = record(topology=True)
CAPACITY = record(capacity=True)
CAPACITY_OF_NODE = record(capacity=True, node="n1")
ATTACHES = record(controller_capabilities=["PUBLISH_UNPUBLISH_VOLUME"])
EVERY = [PLAIN, TOPOLOGY, CAPACITY, CAPACITY_OF_NODE, ATTACHES]


@pytest.mark.parametrize(
    ("resource", "needed_by", "catalog", "metadata_only"),
    [
        (paths.STORAGE_CLASSES, EVERY, "classes", False),
        (paths.CLAIMS, EVERY, "", False),
        (paths.VOLUMES, EVERY, "", False),
        (paths.CSI_NODES, [TOPOLOGY, CAPACITY], "csinodes", False),
        (paths.NODES, [TOPOLOGY, CAPACITY], "nodes", True),
        (paths.ATTACHMENTS, [ATTACHES], "attachments", False),
    ],
    ids=lambda value: getattr(value, "plural", None),
)
def test_what_is_watched_for_which_driver(resource, needed_by, catalog, metadata_only):
    """L-078, CAP-020: Nodes and attachments are watched only for drivers that need them.

    Only a node's labels matter, so the watcher requests its metadata alone. The stored objects
    serve every driver, so a new driver causes no relist.
    """
    (watch,) = [one for one in SPEC.watches if one.resource == resource]
    assert [one for one in EVERY if watch.is_needed([one])] == needed_by
    assert (watch.catalog, watch.metadata_only) == (catalog, metadata_only)
    assert watch.relists([], [PLAIN]) is False
