"""The owner lookup of C-110."""

from __future__ import annotations

import pytest

from workers.controllers.capacity.owners import owner_reference
from workers.errors import ApiError, ConfigError


def reference(kind, name, *, api_version="apps/v1", controller=True):
    found = {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}"}
    return found | ({"controller": True} if controller else {})


class Cluster:
    """Objects of namespace `ns` by (apiVersion, kind, name)."""

    def __init__(self, *objects):
        self.objects = {(one[0], one[1], one[2]): one[3:] for one in objects}
        self.asked = []

    def __call__(self, api_version, kind, namespace, name):
        self.asked.append((kind, namespace, name))
        if (api_version, kind, name) not in self.objects:
            raise ApiError(404, "NotFound", f'"{name}" not found')
        owners = list(self.objects[api_version, kind, name])
        return {"metadata": {"name": name, "uid": f"uid-{name}", "ownerReferences": owners}}


def look_up(cluster, level):
    return owner_reference(level, namespace="ns", pod_name="prov", fetch=cluster)


def pod(*owners):
    return ("v1", "Pod", "prov", *owners)


SET = reference("ReplicaSet", "rs")


def test_no_level_no_owner_no_question():
    """CAP-060: Level -1 does not need POD_NAME either."""
    cluster = Cluster()
    assert look_up(cluster, -1) is None
    assert cluster.asked == []


def test_c110_level_0_is_the_pod():
    """C-110: The owner reference is as recorded in cap-07."""
    assert look_up(Cluster(pod()), 0) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "prov",
        "uid": "uid-prov",
        "controller": True,
    }


def test_c110_level_1_is_copied_from_the_reference():
    """The owner need not exist, and csi-fleet need not be allowed to read it."""
    cluster = Cluster(pod(reference("ConfigMap", "other", controller=False), SET))
    assert look_up(cluster, 1) == SET
    assert cluster.asked == [("Pod", "ns", "prov")]


def test_c110_level_2_through_a_replica_set():
    """This is the usual Deployment."""
    deployment = reference("Deployment", "d")
    assert look_up(Cluster(pod(SET), ("apps/v1", "ReplicaSet", "rs", deployment)), 2) == deployment


@pytest.mark.parametrize(
    ("cluster", "level", "message"),
    [
        pytest.param(Cluster(), 0, 'get Pod ns/prov: "prov" not found', id="C-110 pod absent"),
        pytest.param(Cluster(pod()), 1, "Pod prov has no controlling owner", id="C-110 no owner"),
        pytest.param(
            Cluster(pod(reference("ReplicaSet", "rs", controller=False))),
            1,
            "Pod prov has no controlling owner",
            id="C-110 no controller flag",
        ),
        pytest.param(
            Cluster(pod(SET)), 2, 'get ReplicaSet ns/rs: "rs" not found', id="C-110 parent missing"
        ),
        pytest.param(
            Cluster(pod(SET), ("apps/v1", "StatefulSet", "rs")),
            2,
            "get ReplicaSet ns/rs",
            id="C-110 parent of other kind",
        ),
        pytest.param(
            Cluster(pod(SET), ("example.com/v1", "ReplicaSet", "rs")),
            2,
            "get ReplicaSet ns/rs",
            id="C-110 parent of other group",
        ),
        pytest.param(
            Cluster(pod(SET), ("apps/v1", "ReplicaSet", "rs")),
            2,
            "ReplicaSet rs has no controlling owner",
            id="C-110 parent without owner",
        ),
    ],
)
def test_look_up_failures_are_fatal(cluster, level, message):
    """CAP-060: The process exits with 255 at the start, and names the object and the reason."""
    with pytest.raises(ConfigError) as caught:
        look_up(cluster, level)
    assert message in str(caught.value)
    assert caught.value.exit_code == 255
