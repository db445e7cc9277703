"""The provisioner as data: its flags, what a driver may have for itself, what is watched for it."""

from __future__ import annotations

import pytest

from workers.controllers.provisioner.spec import FLAGS, SPEC, UID_LENGTH
from workers.kube import paths

# Name: default, and whether a driver of the drivers file may have a value of its own.
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
    """Sweep and node deployment are of the process, not of one driver."""
    assert {flag.name: (flag.default, flag.per_driver) for flag in FLAGS} == TABLE


@pytest.mark.parametrize(
    ("length", "is_taken"),
    [(-2, False), (-1, True), (0, False), (1, True), (2, True), (32, True), (33, False)],
)
def test_p121_a_uid_is_kept_whole_or_to_32_characters(length, is_taken):
    """A UID has 32 characters without its dashes; names of none would all be the same."""
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
    """Nor does a flag have so many keys that requests and PVs grow without a limit."""
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
    """L-078, CAP-020: nodes and attachments are followed only for drivers that need them.

    Of a node its labels are all that counts, so the API server sends its metadata alone. What is
    known of objects serves every driver that comes later, so nothing is listed again for it.
    """
    (watch,) = [one for one in SPEC.watches if one.resource == resource]
    assert [one for one in EVERY if watch.is_needed([one])] == needed_by
    assert (watch.catalog, watch.metadata_only) == (catalog, metadata_only)
    assert watch.relists([], [PLAIN]) is False
