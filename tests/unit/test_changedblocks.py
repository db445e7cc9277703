"""Who gets which blocks: the decisions, with upstream's status codes and texts (CB-002..CB-009)."""

from __future__ import annotations

import base64
import copy

import pytest

from csi_client.blockserver import Asked, StreamRefused
from workers.changedblocks import Planner
from workers.drivers.driversfile import DriverSpec
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError

DRIVERS = {name: DriverSpec(name, f"/{name}.sock") for name in ("one", "two", "three")}
SECRET_KEY = "csi.storage.k8s.io/snapshotter-secret"


class Kube:
    """An API server with one snapshot of driver `one`."""

    def __init__(self):
        self.client = self
        self.reviews = []
        self.broken = {}
        self.user = {"username": "backup", "groups": ["g"], "extra": {"e": ["x"]}, "uid": "u"}
        self.access = {"allowed": True}
        self.services = {"one": "to-one", "two": "to-two", "foreign": "to-foreign"}
        self.snapshot = {
            "kind": "VolumeSnapshot",
            "metadata": {"name": "snap", "namespace": "shop", "uid": "s-uid"},
            "spec": {"volumeSnapshotClassName": "fast"},
            "status": {"readyToUse": True, "boundVolumeSnapshotContentName": "content"},
        }
        self.content = {
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content"},
            "spec": {"driver": "one", "volumeSnapshotRef": {"uid": "s-uid"}},
            "status": {"readyToUse": True, "snapshotHandle": "handle"},
        }
        self.classes = [self.make_class("fast")]
        self.secret = {"data": {"password": base64.b64encode(b"hunter2").decode()}}

    @staticmethod
    def make_class(name, driver="one", *, is_default=False, **parameters):
        annotation = "snapshot.storage.kubernetes.io/is-default-class"
        return {
            "metadata": {"name": name, "annotations": {annotation: "true"} if is_default else {}},
            "driver": driver,
            "parameters": parameters,
        }

    def _answer(self, what, found):
        if what in self.broken:
            raise self.broken[what]
        return copy.deepcopy(found)

    def create(self, path, body):
        what = path.rpartition("/")[2]
        self.reviews.append((what, body["spec"]))
        if what == "subjectaccessreviews":
            return {"status": self._answer(what, self.access)}
        audiences = [one for one in body["spec"]["audiences"] if one in body["spec"]["token"]]
        status = {"authenticated": bool(audiences), "audiences": audiences, "user": self.user}
        return {"status": self._answer(what, status)}

    def list(self, resource):
        if resource is paths.SNAPSHOT_CLASSES:
            return self._answer("classes", self.classes)
        assert resource is paths.SNAPSHOT_METADATA_SERVICES
        return self._answer(
            "services",
            [
                {"metadata": {"name": name}, "spec": {"audience": audience}}
                for name, audience in self.services.items()
            ],
        )

    def get_snapshot(self, namespace, name):
        assert (namespace, name) == ("shop", "snap")
        return self._answer("snapshot", self.snapshot)

    def get_snapshot_content(self, name):
        assert name == "content"
        return self._answer("content", self.content)

    def get(self, resource, name):
        assert resource is paths.SNAPSHOT_CLASSES
        return self._answer("class", next(x for x in self.classes if x["metadata"]["name"] == name))

    def get_secret(self, namespace, name):
        assert (namespace, name) == ("shop", "array")
        return self._answer("secret", self.secret)


@pytest.fixture
def kube():
    return Kube()


def asked(**changes):
    given = {
        "token": "token to-one",
        "namespace": "shop",
        "snapshot": "snap",
        "base": "",
        "starting_offset": 0,
        "max_results": 0,
        "wants_delta": False,
    }
    return Asked(**(given | changes))


def plan(kube, audience="", **changes):
    return Planner(kube, lambda: DRIVERS, audience).plan(asked(**changes))


def refusal(kube, audience="", **changes):
    with pytest.raises(StreamRefused) as caught:
        plan(kube, audience, **changes)
    return caught.value.code.name, str(caught.value)


def test_the_call_for_a_snapshot(kube):
    found = plan(kube)
    assert (found.driver, found.caller, found.endpoint) == ("one", "backup", "/one.sock")
    assert (found.snapshot_id, found.secrets) == ("handle", {})
    token, access = kube.reviews
    assert token[1]["audiences"] == ["to-one", "to-two"], "of the served drivers with an object"
    assert access[1] == {
        "user": "backup",
        "groups": ["g"],
        "extra": {"e": ["x"]},
        "uid": "u",
        "resourceAttributes": {
            "verb": "get",
            "namespace": "shop",
            "group": "snapshot.storage.k8s.io",
            "version": "v1",
            "resource": "volumesnapshots",
        },
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"token": ""}, "securityToken is missing"),
        ({"namespace": ""}, "namespace parameter cannot be empty"),
        ({"snapshot": ""}, "snapshotName cannot be empty"),
        ({"snapshot": "", "base": "b", "wants_delta": True}, "targetSnapshotName cannot be empty"),
        ({"wants_delta": True}, "baseSnapshotId cannot be empty"),
        ({"starting_offset": -1}, "startingOffset cannot be negative"),
        ({"max_results": -1}, "maxResults cannot be negative"),
    ],
)
def test_an_incomplete_request_asks_nobody(kube, changes, text):
    """CB-002, CBD-008."""
    assert refusal(kube, **changes) == ("INVALID_ARGUMENT", text)
    assert not kube.reviews


def test_an_unknown_token_learns_nothing(kube):
    """CB-004."""
    kube.broken["snapshot"] = AssertionError("it must not be read")
    assert refusal(kube, token="x") == ("UNAUTHENTICATED", "unauthenticated user")
    assert len(kube.reviews) == 1


def test_a_token_for_another_drivers_audience_is_an_unknown_one(kube):
    """CBD-001."""
    assert refusal(kube, token="to-two") == ("UNAUTHENTICATED", "unauthenticated user")
    assert plan(kube, token="to-two to-one")


def test_one_audience_for_all_drivers(kube):
    """CB-003."""
    kube.broken["services"] = AssertionError("no object is needed")
    assert plan(kube, "mine", token="mine").driver == "one"
    assert refusal(kube, "mine", token="to-one")[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("answer", [{"allowed": False}, {}, {"allowed": True, "denied": True}])
def test_a_caller_without_the_permission(kube, answer):
    """CB-005."""
    kube.access = answer | {"reason": "no rule"}
    kube.broken["snapshot"] = AssertionError("it must not be read")
    text = "user does not have permissions to perform the operation: no rule"
    assert refusal(kube) == ("PERMISSION_DENIED", text)


FORBIDDEN = ForbiddenError(403, "Forbidden", "no")
GONE = NotFoundError(404, "NotFound", "not there")


@pytest.mark.parametrize(
    ("what", "error", "code", "text"),
    [
        ("services", FORBIDDEN, "INTERNAL", "failed to authenticate user: failed to list the Sn"),
        ("tokenreviews", FORBIDDEN, "INTERNAL", "failed to authenticate user: "),
        ("subjectaccessreviews", FORBIDDEN, "INTERNAL", "failed to authorize the user: "),
        ("snapshot", GONE, "UNAVAILABLE", "failed to get VolumeSnapshot 'shop/snap': "),
        ("content", GONE, "UNAVAILABLE", "failed to get VolumeSnapshotContent 'content': "),
        ("class", GONE, "UNAVAILABLE", "failed to get VolumeSnapshotClass 'fast': "),
    ],
)
def test_the_api_server_refuses(kube, what, error, code, text):
    kube.broken[what] = error
    found = refusal(kube)
    assert found[0] == code
    assert found[1].startswith(text)


@pytest.mark.parametrize(
    ("part", "change", "code", "text"),
    [
        (
            "snapshot",
            {"status": {}},
            "UNAVAILABLE",
            "the VolumeSnapshot is not yet ready, name: sn",
        ),
        (
            "snapshot",
            {"status": {"readyToUse": True}},
            "UNAVAILABLE",
            "boundVolumeSnapshotContentName is not set in VolumeSnapshot status, name: snap",
        ),
        (
            "snapshot",
            {"metadata": {"name": "snap", "namespace": "shop", "uid": "new"}},
            "UNAVAILABLE",
            "the VolumeSnapshotContent 'content' belongs to a different VolumeSnapshot than 'shop/",
        ),
        (
            "content",
            {"status": {}},
            "UNAVAILABLE",
            "the VolumeSnapshotContent is not yet ready, na",
        ),
        (
            "content",
            {"status": {"readyToUse": True}},
            "UNAVAILABLE",
            "snapshotHandle is not set in VolumeSnapshotContent status, name: content",
        ),
        (
            "content",
            {"spec": {"driver": "foreign", "volumeSnapshotRef": {"uid": "s-uid"}}},
            "INVALID_ARGUMENT",
            "VolumeSnapshot 'snap' does not belong to a CSI driver that this server serves",
        ),
        (
            "content",
            {"spec": {"driver": "three", "volumeSnapshotRef": {"uid": "s-uid"}}},
            "INTERNAL",
            "failed to authenticate user: failed to find the SnapshotMetadataService CR for driver",
        ),
        (
            "snapshot",
            {"status": 7},
            "UNAVAILABLE",
            "VolumeSnapshot shop/snap: field status is a nu",
        ),
    ],
)
def test_a_snapshot_that_cannot_be_read(kube, part, change, code, text):
    """CB-007, CB-008, CBD-005."""
    getattr(kube, part).update(change)
    found = refusal(kube)
    assert found[0] == code
    assert found[1].startswith(text)


def test_no_driver_has_an_object(kube):
    kube.services = {"foreign": "to-foreign"}
    code, text = refusal(kube)
    assert code == "INTERNAL"
    assert text.endswith("for driver 'one, three, two'")


def test_the_secret_of_the_class(kube):
    """CB-009."""
    names = {
        f"{SECRET_KEY}-name": "array",
        f"{SECRET_KEY}-namespace": "${volumesnapshot.namespace}",
    }
    kube.classes = [kube.make_class("fast", **names)]
    found = plan(kube)
    assert found.secrets == {"password": "hunter2"}
    assert "hunter2" not in repr(found)
    kube.broken["secret"] = FORBIDDEN
    assert refusal(kube)[1].startswith("failed to get credentials: ")
    kube.broken.clear()
    kube.secret = {"data": {"password": "?"}}
    assert refusal(kube)[1].startswith("failed to get credentials: ")
    kube.classes = [kube.make_class("fast", **{f"{SECRET_KEY}-name": "array"})]
    assert refusal(kube)[1].startswith("invalid snapshotter secret parameters in VolumeSnapshotC")


def test_a_snapshot_without_a_class_has_the_default_one(kube):
    """CB-009."""
    del kube.snapshot["spec"]["volumeSnapshotClassName"]
    assert refusal(kube)[1] == "no default VolumeSnapshotClass is set for the CSI driver 'one'"
    kube.classes.append(kube.make_class("other", "two", is_default=True))
    kube.classes.append(kube.make_class("default", is_default=True))
    assert plan(kube).driver == "one"
    kube.classes.append(kube.make_class("second", is_default=True))
    text = "multiple default VolumeSnapshotClasses are set for the CSI driver 'one'"
    assert refusal(kube) == ("UNAVAILABLE", text)
    kube.broken["classes"] = FORBIDDEN
    assert refusal(kube)[1].startswith("failed to list VolumeSnapshotClasses: ")


def test_a_class_of_another_driver_does_not_choose_the_secret(kube):
    """CBD-011: the snapshot's owner can change the name of the class."""
    kube.classes = [kube.make_class("fast", "two", **{f"{SECRET_KEY}-name": "array"})]
    text = "VolumeSnapshotClass 'fast' is one of the driver 'two', but the snapshot is one of 'one'"
    assert refusal(kube) == ("UNAVAILABLE", text)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\nb", "snap\n", "Snap", "-a", "a" * 254, "é"])
def test_a_name_that_no_object_has(kube, name):
    """CBD-012: the names are checked before anything is asked."""
    kube.broken["services"] = AssertionError("it must not be read")
    assert refusal(kube, namespace=name) == (
        "INVALID_ARGUMENT",
        "the namespace is not a name of Kubernetes",
    )
    code, text = refusal(kube, snapshot=name)
    assert (code, text) == ("INVALID_ARGUMENT", "the snapshot's name is not a name of Kubernetes")


def test_no_text_shows_the_token():
    assert "secret" not in repr(asked(token="secret"))
