"""Checks the answers of `csi-fleet explain` in common situations.

Each answer says what happened, who must act, and which command to run next. The objects are in
a real API server without controllers, and the engine's functions write the state in Redis. `{ns}`
stands for the test's namespace and `{x}` for the prefix of cluster-wide names.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support.answers_world import DRIVER, AnswersWorld
from tests.support.controlplane import ControlPlane
from tests.support.waiting import wait_until
from workers.config.load import parse
from workers.explain.moves import ADMIN, CLUSTER, FLEET, ITSELF, NOBODY, STORAGE, USER
from workers.kube import paths
from workers.observability.trail import REFUSED
from workers.queue.keys import volume_key
from workers.queue.registry import DriverRegistry

LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
NOTHING = ""
SECRET = {
    "csi.storage.k8s.io/provisioner-secret-name": "key",
    "csi.storage.k8s.io/provisioner-secret-namespace": "ops",
}
RPC_ERROR = "error rpc error: code = {0} desc = {1}"


@dataclass(frozen=True)
class Situation:
    """An object to ask about, and what the answer must contain."""

    make: Callable[[AnswersWorld], str | None]
    word: str
    name: str
    cause: str
    what: tuple[str, ...]
    move: str
    command: str


SITUATIONS: list[Situation] = []


def situation(asked: str, cause: str, *what: str, move: str, command: str):
    """Register a situation.

    The decorated function creates it and may return the object's name.
    """
    word, _, name = asked.partition(" ")

    def add(make):
        SITUATIONS.append(Situation(make, word, name, cause, what, move, command))
        return make

    return add


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane where only the API server runs, so that no controller changes an object."""
    with ControlPlane(tmp_path_factory.mktemp("answers"), users={"dev": ("dev",)}) as plane:
        plane.kill("kube-controller-manager")
        with plane.api() as api:
            for name in ("volumegroupsnapshot", "volumegroupsnapshotcontent"):
                api.apply(group_crd(name))
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "csi-fleet"}})
        yield plane


def group_crd(name: str):
    """Return a CRD of group snapshots that accepts any fields."""
    kinds = {
        "volumegroupsnapshot": "VolumeGroupSnapshot",
        "volumegroupsnapshotcontent": "VolumeGroupSnapshotContent",
    }
    group = "groupsnapshot.storage.k8s.io"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{name}s.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kinds[name], "plural": f"{name}s", "singular": name},
            "scope": "Cluster" if name.endswith("content") else "Namespaced",
            "versions": [
                {
                    "name": paths.GROUP_SNAPSHOTS.api_version.partition("/")[2],
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def api(plane):
    with plane.api() as api:
        yield api


@pytest.fixture
def world(plane, api, redis_client, redis_server):
    world = AnswersWorld(api, plane.kubeconfig, redis_client, redis_server.url)
    yield world
    world.resume_all()


def check(world: AnswersWorld, one: Situation) -> None:
    """Create the situation, ask `explain`, and check the answer as text and as JSON."""
    named = one.make(world)
    fill = lambda text: text.replace("{ns}", world.namespace).replace("{x}", world.named(""))  # noqa: E731
    name = named or fill(one.name)
    text, answer = world.explain(one.word, name)
    assert answer["cause"] == one.cause, text
    assert answer["move"] == one.move, text
    for words in one.what:
        assert fill(words) in answer["text"], text
    assert f"Who must act: {one.move}." in text
    if not one.command:
        assert answer["commands"] == [], text
        assert "Run next: nothing, nobody has to act." in text
        return
    assert fill(one.command) == answer["commands"][0], text
    assert fill(one.command) in text
    for command in answer["commands"]:
        understood(command)


def understood(command: str) -> None:
    """Check that our own parser accepts the command if it is one of csi-fleet."""
    words = shlex.split(command.partition(" >")[0], comments=True)
    assert words[0] in {"kubectl", "csi-fleet"}
    if words[0] == "csi-fleet":
        parse(words[1], words[2:], {})


# Claims and classes.


@situation(
    "pvc {ns}/data",
    "class-missing",
    'Storage class "gold" does not exist.',
    move=ADMIN,
    command="kubectl get storageclass",
)
def class_missing(world):
    world.claim(storage_class="gold")


@situation(
    "pvc {ns}/data",
    "no-class",
    "requests no storage class",
    move=USER,
    command="kubectl get storageclass",
)
def empty_class(world):
    world.claim(storage_class="")


@situation(
    "pvc {ns}/data",
    "static-class",
    "no dynamic provisioning",
    move=USER,
    command="kubectl get pv",
)
def static_class(world):
    world.claim(storage_class=world.storage_class("local", "kubernetes.io/no-provisioner"))


@situation(
    "pvc {ns}/data",
    "unknown-provisioner",
    'Provisioner "nobody.example.org" is unknown',
    move=ADMIN,
    command="kubectl get storageclass {x}odd -o yaml",
)
def unknown_provisioner(world):
    world.claim(storage_class=world.storage_class("odd", "nobody.example.org"))


@situation(
    "pvc {ns}/data",
    "driver-not-registered",
    'Driver "ceph.example.org" is not served: no worker is connected to it.',
    move=STORAGE,
    command="kubectl get pods -A -l csi-fleet.io/redis-client=true",
)
def driver_without_workers(world):
    driver = paths.Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
    if not world.api.find(driver.path("ceph.example.org")):
        world.put(driver, "ceph.example.org", spec={"attachRequired": True})
    world.claim(storage_class=world.storage_class("ceph", "ceph.example.org"))


@situation(
    "pvc {ns}/data",
    "not-served",
    "none of them runs the provisioner",
    move=FLEET,
    command="csi-fleet explain driver attach.example.org",
)
def driver_without_provisioner(world):
    world.serve("attach.example.org", "attacher")
    world.claim(storage_class=world.storage_class("half", "attach.example.org"))


@situation(
    "pvc {ns}/data",
    "waits-for-consumer",
    "no pod uses the claim yet",
    move=USER,
    command="kubectl get pods,deployments,statefulsets -n {ns}",
)
def late_without_pod(world):
    world.claim(storage_class=world.storage_class(**LATE))


@situation(
    "pvc {ns}/data",
    "waits-for-consumer",
    "pod web-0 uses it",
    "0/3 nodes are available",
    move=USER,
    command="kubectl describe pod web-0 -n {ns}",
)
def late_with_pod(world):
    world.claim(storage_class=world.storage_class(**LATE))
    why = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    world.pod(status={"conditions": [why]})


@situation(
    "pvc {ns}/data",
    "selector",
    "works only with manually created volumes",
    move=USER,
    command="kubectl get pvc data -n {ns} -o yaml > claim.yaml",
)
def selector(world):
    world.claim(selector={"matchLabels": {"tier": "gold"}})


@situation(
    "pvc {ns}/data",
    "volume-missing",
    "requests volume nowhere, which does not exist",
    move=USER,
    command="kubectl get pv",
)
def named_volume_missing(world):
    world.claim(volumeName="nowhere")


@situation(
    "pvc {ns}/data",
    "lost",
    "PersistentVolume gone-1 does not exist",
    move=USER,
    command="kubectl get pv",
)
def lost(world):
    world.claim(volumeName="gone-1", phase="Lost")


@situation(
    "pvc {ns}/data",
    "secret-missing",
    "provisioner secret ops/key",
    "not found",
    move=ADMIN,
    command="kubectl get secret key -n ops",
)
def secret_missing(world):
    world.claim(storage_class=world.storage_class(parameters=SECRET))


@situation(
    "pvc {ns}/data",
    "class-invalid",
    'invalid tokens: ["foo"]',
    move=ADMIN,
    command="kubectl get storageclass {x}fast -o yaml",
)
def unknown_token(world):
    given = {**SECRET, "csi.storage.k8s.io/provisioner-secret-name": "${foo}"}
    world.claim(storage_class=world.storage_class(parameters=given))


@situation(
    "pvc {ns}/data",
    "class-invalid",
    'unknown parameter key "csi.storage.k8s.io/fstyp"',
    move=ADMIN,
    command="kubectl get storageclass {x}fast -o yaml",
)
def unknown_key(world):
    given = {"csi.storage.k8s.io/fstyp": "xfs"}
    world.claim(storage_class=world.storage_class(parameters=given))


@situation(
    "pvc {ns}/data",
    "class-missing",
    'VolumeAttributesClass "silver" does not exist.',
    move=ADMIN,
    command="kubectl get volumeattributesclass",
)
def attributes_class_missing(world):
    world.claim(volumeAttributesClassName="silver")


@situation(
    "pvc {ns}/data",
    "source-missing",
    "created from VolumeSnapshot {ns}/nightly, which does not exist",
    move=USER,
    command="kubectl get volumesnapshot -n {ns}",
)
def snapshot_as_source_missing(world):
    world.claim(dataSource=snapshot_source("nightly"))


@situation(
    "pvc {ns}/copy",
    "source-not-ready",
    "VolumeSnapshot {ns}/snap, which is not ready yet",
    move=USER,
    command="csi-fleet explain snapshot {ns}/snap",
)
def snapshot_as_source_not_ready(world):
    world.snapshot()
    world.claim("copy", dataSource=snapshot_source("snap"))


@situation(
    "pvc {ns}/copy",
    "source-terminating",
    "PersistentVolumeClaim {ns}/data, which is being deleted",
    move=USER,
    command="csi-fleet explain pvc {ns}/data",
)
def clone_of_a_deleted_claim(world):
    claim, _ = world.bound()
    world.delete(paths.CLAIMS, "data")
    source = {"kind": "PersistentVolumeClaim", "name": "data"}
    world.claim("copy", claim["spec"]["storageClassName"], dataSource=source)


@situation(
    "pvc {ns}/data",
    "no-populator",
    "no VolumePopulator names that kind",
    move=ADMIN,
    command="kubectl get volumepopulators",
)
def no_populator(world):
    ref = {"apiGroup": "files.example.org", "kind": "Tarball", "name": "site"}
    world.claim(dataSourceRef=ref)


@situation(
    "pvc {ns}/data",
    "waits-for-populator",
    "which fills the volume from Image.disks.example.org site",
    move=CLUSTER,
    command=NOTHING,
)
def populator_at_work(world):
    kind = {"group": "disks.example.org", "kind": "Image"}
    if not world.api.find(paths.POPULATORS.path("images")):
        world.put(paths.POPULATORS, "images", sourceKind=kind)
    world.claim(dataSourceRef={"apiGroup": kind["group"], "kind": "Image", "name": "site"})


@situation(
    "pvc {ns}/data",
    "not-requested",
    "has not requested a volume",
    move=CLUSTER,
    command=NOTHING,
)
def not_requested(world):
    world.claim(metadata={"annotations": {}})


@situation(
    "pvc {ns}/data",
    "paused",
    "array upgrade",
    move=FLEET,
    command=f"csi-fleet resume --driver={DRIVER}",
)
def paused(world):
    world.queue.add([world.key("pvc", world.claim(), "claims")])
    world.hold(driver=DRIVER, reason="array upgrade")


@situation(
    "pvc {ns}/data",
    "class-paused",
    "paused the storage class",
    move=FLEET,
    command="csi-fleet resume --class={x}fast",
)
def class_paused(world):
    world.queue.add([world.key("pvc", world.claim(), "claims")])
    world.hold(storage_class=world.named("fast"), reason="audit")


@situation(
    "pvc {ns}/data",
    "driver-lost",
    "No worker is connected to driver",
    "connection refused",
    move=STORAGE,
    command=f"csi-fleet status --driver={DRIVER}",
)
def driver_lost(world):
    key = world.key("pvc", world.claim(), "claims")
    world.queue.add([key])
    world.queue.pause(key.lane, "connection refused")


@situation("pvc {ns}/data", "running", "has been working on this", move=ITSELF, command=NOTHING)
def running(world):
    world.run_key(world.key("pvc", world.claim(), "claims"))


@situation(
    "pvc {ns}/data",
    "storage-full",
    "The storage backend is full",
    move=STORAGE,
    command="kubectl get csistoragecapacities -A",
)
def storage_full(world):
    attempt(world, "ResourceExhausted", "pool is full")


@situation(
    "pvc {ns}/data",
    "driver-error",
    "no such pool",
    move=ADMIN,
    command="kubectl get storageclass {x}fast -o yaml",
)
def invalid_argument(world):
    attempt(world, "InvalidArgument", "no such pool")


@situation(
    "pvc {ns}/data",
    "driver-error",
    "bad password",
    move=STORAGE,
    command="kubectl get storageclass {x}fast -o yaml",
)
def unauthenticated(world):
    attempt(world, "Unauthenticated", "bad password")


@situation(
    "pvc {ns}/data",
    "driver-error",
    "exists with another size",
    move=USER,
    command="kubectl get pvc data -n {ns} -o yaml > claim.yaml",
)
def already_exists(world):
    attempt(world, "AlreadyExists", "exists with another size")


@situation(
    "pvc {ns}/data",
    "driver-error",
    "context deadline exceeded",
    move=STORAGE,
    command=f"csi-fleet status --driver={DRIVER}",
)
def deadline(world):
    attempt(world, "DeadlineExceeded", "context deadline exceeded")


@situation("pvc {ns}/data", "driver-error", "pending", move=ITSELF, command=NOTHING)
def aborted(world):
    attempt(world, "Aborted", "an operation is pending")


@situation(
    "pvc {ns}/data",
    "save-refused",
    "the API server rejects its PersistentVolume",
    move=ADMIN,
    command="kubectl get validatingadmissionpolicy no-pv -o yaml",
)
def policy_refuses_the_volume(world):
    refusal = "ValidatingAdmissionPolicy 'no-pv' with binding 'b' denied request: no"
    world.fail(
        world.key("pvc", world.claim(), "claims"),
        "rpc CreateVolume OK 0.1",
        "api create persistentvolumes 422 0.1",
        f'error failed to save volume pvc-1: persistentvolumes "pvc-1" is forbidden: {refusal}',
    )


@situation(
    "pvc {ns}/data",
    "refused",
    "cannot create resource",
    move=ADMIN,
    command="kubectl auth can-i create persistentvolumes --as=system:serviceaccount:fleet:w",
)
def permission_missing(world):
    refusal = (
        'persistentvolumes is forbidden: User "system:serviceaccount:fleet:w" cannot create '
        'resource "persistentvolumes" in API group "" at the cluster scope'
    )
    world.fail(
        world.key("pvc", world.claim(), "claims"),
        "api create persistentvolumes 403 0.1",
        f"error {REFUSED}{refusal}",
    )


@situation(
    "pvc {ns}/data",
    "node-gone",
    'For pod web-0, the scheduler chose node "n9", which no longer exists.',
    move=ITSELF,
    command="csi-fleet retry pvc {ns}/data",
)
def chosen_node_gone(world):
    record = {
        "name": DRIVER,
        "queue_name": DRIVER,
        "controllers": ["provisioner"],
        "topology": True,
    }
    DriverRegistry(world.client).register(DRIVER, record, ttl_seconds=60)
    chosen = {
        "volume.kubernetes.io/selected-node": "n9",
        "volume.kubernetes.io/storage-provisioner": DRIVER,
    }
    world.claim(storage_class=world.storage_class(**LATE), metadata={"annotations": chosen})
    world.pod()


@situation("pvc {ns}/data", "bound", "bound to volume {x}pv", move=NOBODY, command=NOTHING)
def bound(world):
    world.bound()


@situation(
    "pvc {ns}/dat",
    "not-found",
    "There is no claim {ns}/dat.",
    'Did you mean "data"?',
    move=USER,
    command="csi-fleet explain pvc {ns}/data",
)
def misspelt(world):
    world.claim()


@situation(
    "pvc {ns}/data",
    "used-by-pod",
    "pod web-0 still uses it",
    move=USER,
    command="kubectl delete pod web-0 -n {ns}",
)
def deleted_but_used(world):
    world.bound()
    world.pod()
    world.delete(paths.CLAIMS, "data")


# Volumes.


@situation(
    "pv {x}pv",
    "claim-terminating",
    "bound to claim {ns}/data, which is being deleted",
    move=USER,
    command="csi-fleet explain pvc {ns}/data",
)
def volume_of_a_deleted_claim(world):
    deleted_but_used(world)


@situation(
    "pv {x}pv",
    "kept",
    "reclaim policy is Retain",
    move=ADMIN,
    command="kubectl describe pv {x}pv",
)
def retained(world):
    world.volume(phase="Released", policy="Retain")


@situation(
    "pv {x}pv",
    "still-attached",
    "still attached to node n1",
    move=CLUSTER,
    command="csi-fleet explain va {x}va",
)
def released_but_attached(world):
    world.volume(phase="Released")
    world.attachment(attached=True)


@situation(
    "pv {x}pv",
    "driver-error",
    "volume has snapshots",
    move=USER,
    command="kubectl get volumeattachments",
)
def deletion_refused(world):
    volume = world.volume(phase="Released")
    world.fail(
        volume_key(DRIVER, volume["metadata"]["name"]),
        "rpc DeleteVolume FailedPrecondition 0.1",
        RPC_ERROR.format("FailedPrecondition", "volume has snapshots"),
    )


@situation(
    "pv {x}pv",
    "foreign-finalizer",
    "backup.example.org/hold",
    move=ADMIN,
    command="kubectl describe pv {x}pv",
)
def finalizer_of_another(world):
    world.volume(phase="Released", metadata={"finalizers": ["backup.example.org/hold"]})
    world.delete(paths.VOLUMES, world.named("pv"))


@situation(
    "pv {x}pv",
    "secret-missing",
    "The secret ops/key, which the driver needs to delete the volume",
    move=ADMIN,
    command="kubectl get secret key -n ops",
)
def deletion_without_the_secret(world):
    volume = world.volume(phase="Released")
    world.fail(
        volume_key(DRIVER, volume["metadata"]["name"]),
        'error error getting secret key in namespace ops: secrets "key" not found',
    )


@situation(
    "pv {x}p",
    "not-found",
    "There is no volume {x}p.",
    'Did you mean "{x}pv"?',
    move=USER,
    command="csi-fleet explain pv {x}pv",
)
def volume_misspelt(world):
    world.volume()


# Attachments.


@situation(
    "va {x}va",
    "secret",
    'secrets "key" not found',
    move=ADMIN,
    command="kubectl get secret key -n ops",
)
def attach_without_the_secret(world):
    world.volume()
    failed_attach(
        world,
        'error getting secret key in namespace ops: secrets "key" not found',
        reason="secret",
        node="n2",
    )


@situation(
    "va {x}va",
    "volume-missing",
    "The last detach failed",
    move=ADMIN,
    command="kubectl describe volumeattachment {x}va",
)
def detach_of_a_volume_removed_by_force(world):
    made = world.attachment(attached=True, deleted=True)
    world.fail(
        world.key("va", made, "detachments"),
        'error persistentvolumes "pv" not found',
        memo={"reason": "volume-missing"},
    )


@situation(
    "va {x}va",
    "node-gone",
    "node n1 does not exist",
    move=ADMIN,
    command="kubectl get pods -A --field-selector=spec.nodeName=n1",
)
def attach_to_a_missing_node(world):
    world.volume()
    failed_attach(world, 'CSINode "n1" not found', reason="driver-not-on-node")


@situation(
    "va {x}va",
    "volume-missing",
    "not found",
    move=USER,
    command="kubectl get pvc -A | grep {x}pv",
)
def attach_of_a_missing_volume(world):
    failed_attach(world, 'persistentvolumes "pv" not found', reason="volume-missing", node="n2")


@situation(
    "va {x}va",
    "driver-not-on-node",
    "does not contain driver",
    move=STORAGE,
    command="kubectl get csinode n3 -o yaml",
)
def driver_not_on_node(world):
    world.volume()
    failed_attach(
        world, "CSINode n3 does not contain driver", reason="driver-not-on-node", node="n3"
    )


@situation(
    "va {x}va",
    "driver-error",
    "too many volumes",
    move=ADMIN,
    command="kubectl get pods -A --field-selector=spec.nodeName=n2",
)
def node_is_full(world):
    world.volume()
    failed_attach(world, "too many volumes", code="ResourceExhausted", node="n2")


@situation(
    "va {x}va",
    "driver-error",
    "attached elsewhere",
    move=USER,
    command="kubectl get volumeattachments",
)
def attached_elsewhere(world):
    world.volume()
    failed_attach(world, "attached elsewhere", code="FailedPrecondition", node="n2")


@situation("va {x}va", "attached", "attached to node n1", move=NOBODY, command=NOTHING)
def attached(world):
    world.volume()
    world.attachment(attached=True)


@situation(
    "va {x}va",
    "driver-error",
    "backend is away",
    move=STORAGE,
    command=f"csi-fleet status --driver={DRIVER}",
)
def detach_fails(world):
    world.volume()
    made = world.attachment(attached=True, deleted=True)
    world.fail(
        world.key("va", made, "detachments"),
        "rpc ControllerUnpublishVolume Unavailable 0.1",
        RPC_ERROR.format("Unavailable", "backend is away"),
        memo={"reason": "driver-error"},
    )


# Sizes and attributes classes.


@situation(
    "pvc {ns}/data",
    "size-infeasible",
    "rejects the size 9Ti",
    "larger than the pool",
    move=USER,
    command="kubectl describe pvc data -n {ns}",
)
def size_infeasible(world):
    why = {
        "type": "ControllerResizeError",
        "status": "True",
        "message": "larger than the pool",
    }
    world.bound(
        status={
            "allocatedResources": {"storage": "9Ti"},
            "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
            "conditions": [why],
        },
        resources={"requests": {"storage": "9Ti"}},
    )


@situation(
    "pvc {ns}/data",
    "waits-for-node",
    "has provided 2Gi",
    "when a pod that uses the volume runs",
    move=USER,
    command="kubectl get pods -n {ns} -o wide",
)
def waits_for_the_node(world):
    world.bound(
        status={
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        },
        resources={"requests": {"storage": "2Gi"}},
    )


@situation(
    "pvc {ns}/data",
    "node-failed",
    "Node n1 could not expand the file system: xfs_growfs failed",
    move=STORAGE,
    command="kubectl get pods -A --field-selector=spec.nodeName=n1",
)
def node_failed(world):
    why = {"type": "NodeResizeError", "status": "True", "message": "xfs_growfs failed"}
    world.pod(spec={"nodeName": "n1"})
    world.bound(
        status={
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"},
            "conditions": [why],
        },
        resources={"requests": {"storage": "2Gi"}},
    )


@situation(
    "pvc {ns}/data",
    "change-failed",
    "volume is in use",
    move=USER,
    command="kubectl get pods -n {ns}",
)
def growth_needs_the_volume_offline(world):
    claim, _ = world.bound(resources={"requests": {"storage": "2Gi"}})
    world.fail(
        world.key("pvc", claim, "changes"),
        "rpc ControllerExpandVolume FailedPrecondition 0.1",
        RPC_ERROR.format("FailedPrecondition", "volume is in use"),
    )


@situation(
    "pvc {ns}/data",
    "class-missing",
    'VolumeAttributesClass "gold" does not exist.',
    move=ADMIN,
    command="kubectl get volumeattributesclass",
)
def change_to_a_missing_class(world):
    world.bound(volumeAttributesClassName="gold")


# Snapshots.


@situation(
    "snapshot {ns}/snap",
    "source-missing",
    "taken of claim {ns}/data, which does not exist",
    move=USER,
    command="kubectl get pvc -n {ns}",
)
def snapshot_of_a_missing_claim(world):
    world.snapshot(status={"error": {"message": "cannot get claim from snapshot"}})


@situation(
    "snapshot {ns}/snap",
    "source-not-ready",
    "claim {ns}/data, which has no volume yet",
    move=USER,
    command="csi-fleet explain pvc {ns}/data",
)
def snapshot_of_an_unbound_claim(world):
    world.claim()
    world.snapshot()


@situation(
    "snapshot {ns}/snap",
    "class-missing",
    'VolumeSnapshotClass "weekly" does not exist.',
    move=ADMIN,
    command="kubectl get volumesnapshotclass",
)
def snapshot_class_missing(world):
    world.bound()
    world.snapshot(spec={"volumeSnapshotClassName": "weekly"})


@situation(
    "snapshot {ns}/snap",
    "no-class",
    "has no default class",
    move=USER,
    command="kubectl get volumesnapshotclass -o yaml",
)
def snapshot_without_a_class(world):
    world.bound()
    world.snapshot()


@situation(
    "snapshot {ns}/snap",
    "failed",
    "quota of snapshots",
    move=STORAGE,
    command="kubectl get volumesnapshots -A",
)
def snapshot_refused_by_the_driver(world):
    snapshot = world.snapshot(status={"error": {"message": "quota of snapshots"}})
    content = world.content(snapshot, status={"error": {"message": "quota of snapshots"}})
    world.fail(
        world.key("content", content),
        "rpc CreateSnapshot ResourceExhausted 0.1",
        RPC_ERROR.format("ResourceExhausted", "quota of snapshots"),
    )


@situation(
    "snapshot {ns}/snap",
    "content-missing",
    "its VolumeSnapshotContent snapcontent-1 does not exist",
    move=USER,
    command="kubectl get volumesnapshotcontent",
)
def ready_without_content(world):
    status = {"readyToUse": True, "boundVolumeSnapshotContentName": "snapcontent-1"}
    world.snapshot(status=status)


@situation(
    "snapshot {ns}/snap",
    "deleted-by-hand",
    "marked for deletion",
    move=USER,
    command="kubectl delete volumesnapshot snap -n {ns}",
)
def content_deleted_by_hand(world):
    snapshot = world.snapshot()
    content = world.content(snapshot, status={"readyToUse": True, "snapshotHandle": "s-1"})
    name = content["metadata"]["name"]
    world.api.patch(
        f"{paths.SNAPSHOTS.path('snap', namespace=world.namespace)}/status",
        {"status": {"readyToUse": True, "boundVolumeSnapshotContentName": name}},
    )
    world.delete(paths.SNAPSHOT_CONTENTS, name)


@situation(
    "snapshot {ns}/snap",
    "being-restored",
    "A volume is being restored from the snapshot",
    move=USER,
    command="csi-fleet pending -n {ns}",
)
def deleted_while_restored(world):
    held = ["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"]
    restoring = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
    world.snapshot(metadata={"finalizers": [*held, restoring]})
    world.delete(paths.SNAPSHOTS, "snap")


@situation("snapshot {ns}/snap", "ready", "ready to use", move=NOBODY, command=NOTHING)
def ready(world):
    snapshot = world.snapshot()
    content = world.content(snapshot, status={"readyToUse": True, "snapshotHandle": "s-1"})
    world.api.patch(
        f"{paths.SNAPSHOTS.path('snap', namespace=world.namespace)}/status",
        {
            "status": {
                "readyToUse": True,
                "boundVolumeSnapshotContentName": content["metadata"]["name"],
            }
        },
    )


@situation(
    "content",
    "delete-failed",
    "failed to delete the snapshot",
    "clones depend on it",
    move=USER,
    command="kubectl get pvc -A",
)
def content_not_deleted(world):
    snapshot = world.snapshot()
    deleted = {"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"}
    content = world.content(
        snapshot,
        metadata={"annotations": deleted},
        status={"error": {"message": "clones depend on it"}, "snapshotHandle": "s-1"},
    )
    name = content["metadata"]["name"]
    world.delete(paths.SNAPSHOT_CONTENTS, name)
    world.fail(
        world.key("content", content),
        "rpc DeleteSnapshot FailedPrecondition 0.1",
        RPC_ERROR.format("FailedPrecondition", "clones depend on it"),
    )
    return name


@situation(
    "group-snapshot {ns}/all",
    "source-missing",
    "No claim in namespace {ns} has the labels",
    "app=db",
    move=USER,
    command="kubectl get pvc -n {ns} --show-labels",
)
def group_of_nothing(world):
    selector = {"matchLabels": {"app": "db"}}
    world.put(paths.GROUP_SNAPSHOTS, "all", spec={"source": {"selector": selector}})


# Deleted objects, drivers and namespaces.


@situation(
    "pvc {ns}/data",
    "stranded",
    "csi-fleet cannot finish the attempt without you",
    'secrets "key" not found',
    move=ADMIN,
    command="kubectl get secret key -n {ns}",
)
def stranded(world):
    key = f"claims|{DRIVER}|{world.namespace}/data|u1"
    problem = f'error getting secret key in namespace {world.namespace}: secrets "key" not found'
    world.intent("pvc-u1", key=key, volume="pvc-u1", stage="stranded", problem=problem)


@situation(
    "driver " + DRIVER,
    "paused",
    "firmware",
    move=FLEET,
    command=f"csi-fleet resume --driver={DRIVER}",
)
def whole_driver_paused(world):
    world.hold(driver=DRIVER, reason="firmware")


@situation(
    "namespace {ns}",
    "namespace-terminating",
    "was deleted but is not empty yet",
    move=ADMIN,
    command="kubectl get pods,pvc,volumesnapshots -n {ns}",
)
def namespace_terminating(world):
    world.claim()
    world.delete(paths.NAMESPACES, world.namespace)


# A pod that cannot use a bound claim.


@situation(
    "pvc {ns}/data",
    "not-mounted",
    "node n1 could not mount the volume for pod web-0",
    "mkfs failed",
    move=STORAGE,
    command="kubectl get pods -A --field-selector=spec.nodeName=n1",
)
def node_does_not_mount(world):
    world.bound()
    world.attachment(attached=True)
    why = f'MountVolume.MountDevice failed for volume "{world.named("pv")}": mkfs failed'
    world.pod(spec={"nodeName": "n1"})
    world.event_of_pod("FailedMount", why)


@situation(
    "pvc {ns}/data",
    "not-mounted",
    'secrets "node-key" not found',
    move=ADMIN,
    command="kubectl get secret node-key -n ops",
)
def node_does_not_find_the_secret(world):
    world.bound()
    missing = (
        'failed to find the secret node-key in the namespace ops: secrets "node-key" not found'
    )
    world.pod(spec={"nodeName": "n1"})
    world.event_of_pod("FailedMount", f'MountDevice failed for "{world.named("pv")}": {missing}')


@situation(
    "pvc {ns}/data",
    "not-mounted",
    "not found in the list of registered CSI drivers",
    move=STORAGE,
    command="kubectl get csinode n1 -o yaml",
)
def node_does_not_have_the_driver(world):
    world.bound()
    missing = f"driver name {DRIVER} not found in the list of registered CSI drivers"
    world.pod(spec={"nodeName": "n1"})
    world.event_of_pod("FailedMount", f'MountDevice failed for "{world.named("pv")}": {missing}')


@situation("pvc {ns}/data", "bound", "bound to volume", move=NOBODY, command=NOTHING)
def node_does_not_mount_another_volume(world):
    world.bound()
    world.pod(spec={"nodeName": "n1"})
    world.event_of_pod("FailedMount", 'MountVolume.SetUp failed for volume "config": not found')


@situation(
    "pvc {ns}/data",
    "not-attached",
    "another node still has it",
    "used by pod(s) web-old",
    move=USER,
    command="kubectl get pods -A --field-selector=spec.nodeName=n1",
)
def another_pod_has_the_volume(world):
    world.bound()
    world.attachment(attached=True)
    why = f'Multi-Attach error for volume "{world.named("pv")}" used by pod(s) web-old'
    world.pod(spec={"nodeName": "n2"})
    world.event_of_pod("FailedAttachVolume", why)


@situation(
    "pvc {ns}/data",
    "not-attached",
    "not attached to node n2, where pod web-0 is waiting for it",
    "lun busy",
    move=STORAGE,
    command="csi-fleet explain va {x}va",
)
def pod_waits_for_a_failing_attach(world):
    world.bound()
    failed_attach(world, "lun busy", code="Internal", node="n2")
    world.pod(spec={"nodeName": "n2"})


@situation(
    "pvc {ns}/data",
    "not-scheduled",
    "finds no node for pod web-0",
    "volume node affinity conflict",
    move=ADMIN,
    command="kubectl get pv {x}pv -o yaml",
)
def pod_finds_no_node_for_the_volume(world):
    world.bound()
    why = "0/3 nodes are available: 3 node(s) had volume node affinity conflict."
    condition = {"type": "PodScheduled", "status": "False", "message": why}
    world.pod(status={"phase": "Pending", "conditions": [condition]})


@situation(
    "pvc {ns}/data",
    "not-scheduled",
    "already in-use by another pod",
    move=USER,
    command="kubectl get pods -n {ns} -o wide",
)
def another_pod_has_the_claim(world):
    world.bound()
    why = "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode"
    message = f"0/1 nodes are available: {why} already in-use by another pod."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    world.pod(status={"phase": "Pending", "conditions": [condition]})


@situation("pvc {ns}/data", "bound", "bound to volume", move=NOBODY, command=NOTHING)
def pod_waits_for_another_claim(world):
    world.bound()
    why = "pod has unbound immediate PersistentVolumeClaims"
    condition = {"type": "PodScheduled", "status": "False", "message": why}
    world.pod(status={"phase": "Pending", "conditions": [condition]})


# Further errors of the attacher and of the resizer.


@situation(
    "va {x}vb",
    "driver-error",
    "has a VolumeAttachment for node n1 too ({x}va)",
    move=USER,
    command="csi-fleet explain va {x}va",
)
def attached_to_a_known_node(world):
    world.volume()
    world.attachment(attached=True)
    failed_attach(world, "in use", code="FailedPrecondition", node="n2", name="vb")


@situation(
    "va {x}va",
    "driver-error",
    "Node ghost no longer exists.",
    move=STORAGE,
    command="kubectl get pv {x}pv -o yaml",
)
def detach_from_a_node_that_is_gone(world):
    world.volume()
    made = world.attachment(attached=True, deleted=True, node="ghost")
    world.fail(
        world.key("va", made, "detachments"),
        "rpc ControllerUnpublishVolume NotFound 0.1",
        RPC_ERROR.format("NotFound", "node ghost not found"),
        memo={"reason": "driver-error"},
    )


@situation(
    "va {x}va",
    "refused",
    "connection refused",
    move=ADMIN,
    command="kubectl get pods,services -n sec",
)
def webhook_is_down(world):
    world.volume()
    failed = 'failed calling webhook "va.example.org": Post "https://guard.sec.svc:443/va"'
    world.fail(
        world.key("va", world.attachment(), "attachments"),
        "api patch volumeattachments 500 0.1",
        f"error {REFUSED}Internal error occurred: {failed}: connection refused",
    )


@situation(
    "pvc {ns}/data",
    "waits-for-node",
    "the node is expanding the file system",
    move=CLUSTER,
    command="kubectl get pods -n {ns} -o wide",
)
def node_expands_the_file_system(world):
    world.bound(
        status={
            "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"},
        },
        resources={"requests": {"storage": "2Gi"}},
    )


@situation(
    "pvc {ns}/data",
    "change-failed",
    "code = Unimplemented",
    move=USER,
    command='kubectl patch pvc data -n {ns} -p \'{"spec":{"volumeAttributesClassName":"CLASS"}}\'',
)
def driver_cannot_change_classes(world):
    gold = world.named("gold")
    world.put(paths.ATTRIBUTES_CLASSES, gold, driverName=DRIVER, parameters={"iops": "1"})
    changing = {"status": "InProgress", "targetVolumeAttributesClassName": gold}
    claim, _ = world.bound(volumeAttributesClassName=gold, status={"modifyVolumeStatus": changing})
    world.fail(
        world.key("pvc", claim, "changes"),
        "rpc ControllerModifyVolume Unimplemented 0.1",
        RPC_ERROR.format("Unimplemented", "no ModifyVolume"),
    )


# Further sources.


@situation(
    "pvc {ns}/copy",
    "attempt-failed",
    "must be greater than or equal in size",
    move=USER,
    command="kubectl get pvc copy -n {ns} -o yaml > claim.yaml",
)
def clone_smaller_than_its_source(world):
    world.bound()
    source = {"kind": "PersistentVolumeClaim", "name": "data"}
    copy = world.claim("copy", world.named("fast"), dataSource=source)
    why = (
        "error, new PVC request must be greater than or equal in size to the specified PVC data "
        "source, requested 1 but source is 2"
    )
    world.fail(world.key("pvc", copy, "claims"), f"error {why}")


@situation(
    "pvc {ns}/data",
    "attempt-failed",
    "isn't allowed",
    move=ADMIN,
    command="kubectl get referencegrants -n prod -o yaml",
)
def source_of_another_namespace_without_a_grant(world):
    where = f"accessing prod/s of VolumeSnapshot dataSource from {world.namespace}/data"
    world.fail(world.key("pvc", world.claim(), "claims"), f"error {where} isn't allowed")


@situation(
    "snapshot {ns}/snap",
    "source-unsupported",
    "does not belong to a CSI driver",
    move=USER,
    command="kubectl get pv {x}pv -o yaml",
)
def snapshot_of_a_volume_without_csi(world):
    claim = world.claim(phase="Bound", volumeName=world.named("pv"))
    world.volume(claim=claim, csi=None, nfs={"server": "s", "path": "/x"})
    world.snapshot(status={"error": {"message": "no CSI volume"}})


@situation(
    "content",
    "failed",
    'secrets "key" not found',
    move=ADMIN,
    command="kubectl get secret key -n ops",
)
def snapshot_without_the_secret(world):
    content = world.content(world.snapshot())
    world.fail(
        world.key("content", content),
        'error error getting secret key in namespace ops: secrets "key" not found',
    )
    return content["metadata"]["name"]


@situation(
    "group-snapshot {ns}/all",
    "class-missing",
    'VolumeGroupSnapshotClass "weekly" does not exist.',
    move=ADMIN,
    command="kubectl get volumegroupsnapshotclass",
)
def group_class_missing(world):
    world.bound(metadata={"labels": {"app": "db"}})
    source = {"selector": {"matchLabels": {"app": "db"}}}
    spec = {"source": source, "volumeGroupSnapshotClassName": "weekly"}
    world.put(paths.GROUP_SNAPSHOTS, "all", spec=spec)


@situation(
    "snapshot {ns}/snap",
    "quota",
    "ResourceQuota few is used up",
    move=USER,
    command="kubectl describe resourcequota few -n {ns}",
)
def quota_of_snapshots(world):
    world.quota("few", "count/volumesnapshots.snapshot.storage.k8s.io")


@situation(
    "pvc {ns}/data",
    "not-found",
    "There is no claim {ns}/data.",
    move=USER,
    command="kubectl get pvc -A",
)
def quota_of_something_else(world):
    world.quota("few", "count/volumesnapshots.snapshot.storage.k8s.io")


@situation(
    "snapshot {ns}/nightl",
    "not-found",
    'Did you mean "nightly"?',
    move=USER,
    command="csi-fleet explain snapshot {ns}/nightly",
)
def snapshot_misspelt(world):
    world.snapshot("nightly")


# Further deletions, and a class as a whole.


@situation(
    "pvc {ns}/data",
    "foreign-finalizer",
    "kubernetes.io/pvc-protection",
    move=CLUSTER,
    command="kubectl get pods,volumesnapshots -n {ns}",
)
def deleted_and_not_used(world):
    world.bound()
    world.delete(paths.CLAIMS, "data")


@situation(
    "pv {x}pv",
    "still-bound",
    "claim {ns}/data is still bound to it",
    "policy Delete applies",
    move=USER,
    command="kubectl get pvc data -n {ns}",
)
def volume_deleted_while_bound(world):
    world.bound()
    world.delete(paths.VOLUMES, world.named("pv"))


@situation(
    "class {x}odd",
    "unknown-provisioner",
    'Provisioner "nobody.example.org" is unknown',
    move=ADMIN,
    command="kubectl get storageclass {x}odd -o yaml",
)
def class_of_an_unknown_driver(world):
    world.storage_class("odd", "nobody.example.org")


# Objects that only look as if they were all right.


@situation(
    "pv {x}pv",
    "available",
    "The volume is free and is waiting for a claim.",
    move=NOBODY,
    command=NOTHING,
)
def volume_that_nobody_claims(world):
    world.volume(phase="Available", policy="Retain", storageClassName="manual")


@situation(
    "pvc {ns}/data",
    "volume-mismatch",
    "the claim's storageClassName is empty, the volume's is manual",
    "the claim's size is 2Gi, the volume's is 1Gi",
    move=USER,
    command="kubectl get pv {x}pv -o yaml",
)
def named_volume_does_not_match(world):
    world.volume(phase="Available", policy="Retain", storageClassName="manual")
    size = {"requests": {"storage": "2Gi"}}
    world.claim(storage_class="", volumeName=world.named("pv"), resources=size)


@situation(
    "pvc {ns}/data-web-0",
    "quota",
    "statefulset web could not create it",
    "exceeded quota: storage",
    move=USER,
    command="kubectl describe resourcequota storage -n {ns}",
)
def claim_of_a_workload_exceeds_the_quota(world):
    world.failed_creation(
        'failed to create PVC data-web-0: persistentvolumeclaims "data-web-0" is forbidden: '
        "exceeded quota: storage, requested: requests.storage=20Gi, used: requests.storage=90Gi, "
        "limited: requests.storage=100Gi"
    )


@situation(
    "pvc {ns}/data-web-0",
    "not-created",
    "statefulset web could not create it",
    move=USER,
    command="kubectl describe statefulset web -n {ns}",
)
def claim_of_a_workload_is_refused(world):
    world.failed_creation(
        'failed to create PVC data-web-0: admission webhook "check.example.org" denied it'
    )


@situation(
    "pvc {ns}/data",
    "waits-for-consumer",
    "pod web-0 names node n1 itself (spec.nodeName)",
    move=USER,
    command="kubectl describe pod web-0 -n {ns}",
)
def pod_names_its_node_itself(world):
    world.claim(storage_class=world.storage_class(**LATE))
    world.pod(spec={"nodeName": "n1"})


@situation(
    "pvc {ns}/data",
    "secret-missing",
    'cannot get resource "secrets"',
    move=ADMIN,
    command="csi-fleet secret-roles --account=csi-fleet/worker > roles.yaml",
)
def worker_may_not_read_the_secret(world):
    world.put(paths.SECRETS, "key", stringData={"a": "b"})
    given = {**SECRET, "csi.storage.k8s.io/provisioner-secret-namespace": world.namespace}
    claim = world.claim(storage_class=world.storage_class(parameters=given))
    world.fail(
        world.key("pvc", claim, "claims"),
        "api get secrets 403 0.1",
        f"error error getting secret key in namespace {world.namespace}: {no_right(world)}",
    )


@situation(
    "content",
    "failed",
    'cannot get resource "secrets"',
    move=ADMIN,
    command="csi-fleet secret-roles --account=csi-fleet/worker > roles.yaml",
)
def snapshotter_may_not_read_the_secret(world):
    content = world.content(world.snapshot())
    world.fail(
        world.key("content", content),
        "api get secrets 403 0.1",
        f"error error getting secret key in namespace {world.namespace}: {no_right(world)}",
    )
    return content["metadata"]["name"]


def no_right(world: AnswersWorld) -> str:
    return (
        'secrets "key" is forbidden: User "system:serviceaccount:csi-fleet:worker" cannot get '
        f'resource "secrets" in API group "" in the namespace "{world.namespace}"'
    )


@situation(
    "content {x}content",
    "kept",
    "VolumeSnapshot {ns}/gone was deleted",
    "deletion policy is Retain",
    move=ADMIN,
    command="kubectl get volumesnapshotcontent {x}content -o yaml",
)
def content_of_a_deleted_snapshot_is_kept(world):
    ref = {"name": "gone", "namespace": world.namespace, "uid": "u-1"}
    world.put(
        paths.SNAPSHOT_CONTENTS,
        world.named("content"),
        spec={
            "driver": DRIVER,
            "deletionPolicy": "Retain",
            "source": {"volumeHandle": "v-1"},
            "volumeSnapshotRef": ref,
        },
        status={"readyToUse": True, "snapshotHandle": "s-1"},
    )


@situation(
    "pvc {ns}/data",
    "waits-for-populator",
    "The newest warning about the claim: image site not found",
    move=ADMIN,
    command="kubectl describe pvc data -n {ns}",
)
def populator_warns(world):
    kind = "Image"
    group = f"{world.namespace}.example.org"
    world.put(paths.POPULATORS, world.named("images"), sourceKind={"group": group, "kind": kind})
    source = {"apiGroup": group, "kind": kind, "name": "site"}
    claim = world.claim(dataSourceRef=source)
    world.event_of_claim(claim, "PopulatorFailed", "image site not found", "image-populator")


@situation(
    "pvc {ns}/data",
    "attempt-failed",
    "less than requested capacity",
    move=STORAGE,
    command=f"csi-fleet status --driver={DRIVER}",
)
def driver_creates_a_smaller_volume(world):
    world.fail(
        world.key("pvc", world.claim(), "claims"),
        "rpc CreateVolume OK 0.1",
        "error created volume capacity 1000 less than requested capacity 1073741824",
    )


@situation(
    "pvc {ns}/data",
    "attempt-failed",
    "no topology key found for node n1",
    move=STORAGE,
    command="kubectl get csinode n1 -o yaml",
)
def node_without_topology_keys(world):
    world.fail(
        world.key("pvc", world.claim(), "claims"),
        "error error generating accessibility requirements: no topology key found for node n1",
    )


@situation(
    "pvc {ns}/copy",
    "source-unsupported",
    'whose data belongs to driver "nas.example.org"',
    move=USER,
    command="kubectl get storageclass",
)
def clone_of_a_claim_of_another_driver(world):
    claim = world.claim("data", phase="Bound", volumeName=world.named("pv"))
    world.volume(claim=claim, csi={"driver": "nas.example.org", "volumeHandle": "v-2"})
    source = {"kind": "PersistentVolumeClaim", "name": "data"}
    world.claim("copy", world.named("fast"), dataSource=source)


@situation(
    "snapshot {ns}/mine",
    "failed",
    "is bound to a different snapshot",
    move=USER,
    command="kubectl get VolumeSnapshotContent imported -o yaml",
)
def content_of_another_snapshot(world):
    source = {"volumeSnapshotContentName": "imported"}
    why = "VolumeSnapshotContent [imported] is bound to a different snapshot"
    snapshot = world.put(paths.SNAPSHOTS, "mine", spec={"source": source})
    world.fail(world.key("snapshot", snapshot), f"error {why}")
    world.put(
        paths.SNAPSHOT_CONTENTS,
        "imported",
        spec={
            "driver": DRIVER,
            "deletionPolicy": "Retain",
            "source": {"snapshotHandle": "h-1"},
            "volumeSnapshotRef": {"name": "other", "namespace": world.namespace},
        },
    )
    world.api.patch(
        f"{paths.SNAPSHOTS.path('mine', namespace=world.namespace)}/status",
        {"status": {"error": {"message": why, "time": "2026-01-01T00:00:00Z"}}},
    )


@situation(
    "group-snapshot {ns}/all",
    "failed",
    "the PVC {ns}/late is not yet bound to a PV",
    move=USER,
    command="csi-fleet explain pvc {ns}/late",
)
def member_of_a_group_is_not_bound(world):
    world.claim("late", metadata={"labels": {"app": "db"}})
    why = (
        f"Failed to create group snapshot content with error the PVC {world.namespace}/late is not "
        "yet bound to a PV, will not attempt to take a group snapshot"
    )
    group = world.put(
        paths.GROUP_SNAPSHOTS,
        "all",
        spec={"source": {"selector": {"matchLabels": {"app": "db"}}}},
        status={"error": {"message": why, "time": "2026-01-01T00:00:00Z"}, "readyToUse": False},
    )
    world.fail(world.key("group-snapshot", group), f"error {why}")


@situation(
    "group-content {x}gc",
    "failed",
    "unknown service csi.v1.GroupController",
    move=USER,
    command="kubectl delete volumegroupsnapshot all -n {ns}",
)
def driver_takes_no_group_snapshots(world):
    group = world.put(paths.GROUP_SNAPSHOTS, "all", spec={"source": {"selector": {}}})
    ref = {key: group["metadata"][key] for key in ("name", "namespace", "uid")}
    content = world.put(
        paths.GROUP_SNAPSHOT_CONTENTS,
        world.named("gc"),
        spec={
            "driver": DRIVER,
            "deletionPolicy": "Delete",
            "source": {"volumeHandles": ["v-1"]},
            "volumeGroupSnapshotRef": ref,
        },
    )
    world.fail(
        world.key("group-content", content),
        "rpc CreateVolumeGroupSnapshot Unimplemented 0.1",
        RPC_ERROR.format("Unimplemented", "unknown service csi.v1.GroupController"),
    )


@situation(
    "pvc {ns}/mine",
    "volume-of-another",
    "belongs to claim {ns}/data",
    move=USER,
    command="kubectl get pv {x}pv -o yaml",
)
def volume_of_a_claim_that_is_alive(world):
    world.bound()
    world.claim("mine", "", volumeName=world.named("pv"))


@situation(
    "class {x}gone",
    "class-missing",
    "does not exist",
    move=ADMIN,
    command="kubectl get storageclass",
)
def class_that_is_gone(world):
    world.storage_class("slow")


@situation(
    "pod {ns}/web-0",
    "class-missing",
    "The pod uses claim data.",
    move=ADMIN,
    command="kubectl get storageclass",
)
def pod_whose_claim_has_no_class(world):
    world.claim(storage_class="gold")
    world.pod()


@situation(
    "pod {ns}/web-0",
    "nothing-to-do",
    "The pod's claims are bound",
    move=NOBODY,
    command="kubectl describe pod web-0 -n {ns}",
)
def pod_whose_claims_are_fine(world):
    world.bound()
    world.pod()


def snapshot_source(name: str):
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def attempt(world: AnswersWorld, code: str, text: str) -> None:
    """Let the driver answer CreateVolume with an error."""
    world.fail(
        world.key("pvc", world.claim(), "claims"),
        f"rpc CreateVolume {code} 0.1",
        f"error failed to provision volume: {RPC_ERROR.format(code, text).removeprefix('error ')}",
    )


def failed_attach(
    world: AnswersWorld,
    text: str,
    *,
    reason: str = "driver-error",
    code: str = "",
    node: str = "",
    name: str = "va",
) -> None:
    """Let an attachment fail. With a code, the driver's call fails."""
    if node and not world.api.find(paths.NODES.path(node)):
        world.put(paths.NODES, node)
    error = {"message": text, "time": "2026-01-01T00:00:00Z"}
    made = world.attachment(name, attachError=error, node=node or "n1")
    notes = [f"rpc ControllerPublishVolume {code} 0.1"] if code else []
    world.fail(
        world.key("va", made, "attachments"), *notes, f"error {text}", memo={"reason": reason}
    )


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.make.__name__)
def test_the_answer_says_what_happened_whose_move_it_is_and_the_command(world, one):
    check(world, one)


def test_an_account_with_few_rights_learns_which_permission_is_missing(world, plane):
    """The claim can be read, its class cannot: the answer names the permission and the event."""
    claim = world.claim(storage_class="gold")
    why = 'storageclass.storage.k8s.io "gold" not found'
    world.event_of_claim(claim, "ProvisioningFailed", why, "persistentvolume-controller")
    allow(world, "dev", "persistentvolumeclaims", "pods", "events")
    world.kubeconfig = plane.kubeconfig_for("dev")
    text, answer = world.explain("pvc", f"{world.namespace}/data")
    assert (answer["cause"], answer["move"]) == ("no-permission", ADMIN), text
    assert "`get` for storageclasses.storage.k8s.io" in answer["text"]
    assert 'storageclass.storage.k8s.io "gold" not found' in answer["text"]
    assert answer["commands"] == ["kubectl auth can-i get storageclasses.storage.k8s.io"]
    text, answer = world.explain("snapshot", f"{world.namespace}/snap")
    assert (answer["cause"], answer["move"]) == ("no-permission", ADMIN), text
    assert answer["commands"] == [
        f"kubectl auth can-i get volumesnapshots.snapshot.storage.k8s.io -n {world.namespace}"
    ]


def allow(world: AnswersWorld, user: str, *resources: str) -> None:
    """Let a user read some kinds of the namespace."""
    group, name = "rbac.authorization.k8s.io", "reader"
    place = {"name": name, "namespace": world.namespace}
    made = {"apiVersion": f"{group}/v1", "metadata": place}
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": ["get", "list"]}]
    world.api.create({**made, "kind": "Role", "rules": rules})
    world.api.create(
        {
            **made,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
        }
    )


def test_a_kind_whose_crd_is_not_installed_is_named(world):
    world.claim()
    group = "groupsnapshot.storage.k8s.io"
    crd = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/volumegroupsnapshots.{group}"
    world.api.delete(crd)
    wait_until(lambda: not world.api.find(crd), 30, "the CRD is gone")
    try:
        text, answer = world.explain("group-snapshot", f"{world.namespace}/all")
    finally:
        world.api.apply(group_crd("volumegroupsnapshot"))
    assert (answer["cause"], answer["move"]) == ("crd-missing", ADMIN), text
    assert answer["commands"] == [f"kubectl get crd volumegroupsnapshots.{group}"]


def test_without_redis_the_objects_still_answer(world):
    """Without Redis, a cause that only needs Kubernetes objects is still found.

    If the cause needs the queue, the answer says that Redis is unreachable.
    """
    world.bound()
    world.attachment(attached=True)
    ready(world)
    world.claim("late", world.storage_class("late", **LATE))
    world.url = "redis://127.0.0.1:1"
    found = {
        word: world.explain(word, name)[1]
        for word, name in (
            ("pvc", f"{world.namespace}/data"),
            ("pv", world.named("pv")),
            ("va", world.named("va")),
            ("snapshot", f"{world.namespace}/snap"),
        )
    }
    causes = {word: one["cause"] for word, one in found.items()}
    assert causes == {"pvc": "bound", "pv": "in-use", "va": "attached", "snapshot": "ready"}
    late = world.explain("pvc", f"{world.namespace}/late")[1]
    assert late["cause"] == "waits-for-consumer"
    world.claim("wanted", world.named("late").replace("late", "fast"))
    wanted = world.explain("pvc", f"{world.namespace}/wanted")[1]
    assert (wanted["cause"], wanted["move"]) == ("redis-away", FLEET)
    assert wanted["commands"] == ["csi-fleet doctor"]


def test_without_redis_a_pod_that_waits_for_its_volume_is_explained(world):
    pod_waits_for_a_failing_attach(world)
    world.url = "redis://127.0.0.1:1"
    found = world.explain("pvc", f"{world.namespace}/data")[1]
    assert (found["cause"], found["move"]) == ("not-attached", STORAGE)
    assert "lun busy" in found["text"]
    assert found["commands"][0] == f"csi-fleet explain va {world.named('va')}"
