"""Appendix A of the specification: one complete exchange, field by field."""

from __future__ import annotations

from google.protobuf import json_format

from csi_client import messages as csi
from workers.topology.affinity import node_affinity
from workers.translate import (
    attributes_class,
    capability,
    claims,
    names,
    parameters,
    secrets,
    volume,
)
from workers.translate.request import build_request

UID = "9b2f0c1e-0000-4000-8000-000000000001"
NAME = f"pvc-{UID}"
DRIVER = "csi.example.org"
ZONE = "topology.example.org/zone"
PREFIX = "csi.storage.k8s.io/"
IDENTITY = "1700000000000-42-csi.example.org"

CLASS = {
    "metadata": {"name": "fast"},
    "provisioner": DRIVER,
    "parameters": {
        "type": "ssd",
        f"{PREFIX}fstype": "xfs",
        f"{PREFIX}provisioner-secret-name": "creds-${pvc.namespace}",
        f"{PREFIX}provisioner-secret-namespace": "storage",
    },
    "mountOptions": ["noatime"],
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}
VAC = {"metadata": {"name": "gold"}, "driverName": DRIVER, "parameters": {"iops": "5000"}}
CLAIM = {
    "metadata": {
        "namespace": "shop",
        "name": "data-db-0",
        "uid": UID,
        "resourceVersion": "811",
        "annotations": {
            "volume.kubernetes.io/storage-provisioner": DRIVER,
            "volume.kubernetes.io/selected-node": "n2",
        },
    },
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "storageClassName": "fast",
        "volumeAttributesClassName": "gold",
        "resources": {"requests": {"storage": "10Gi"}},
    },
}
SECRET = {"data": {"user": "c2hvcA==", "key": "b3Blbg=="}}


def zones(*values):
    return [csi.Topology(segments={ZONE: value}) for value in values]


def make_request(values):
    """Do the pure steps of P-101; the requirements are those of section 4 for node n2."""
    ref = secrets.resolve(secrets.SecretKind.PROVISIONER, values, NAME, CLAIM)
    assert ref is not None
    return build_request(
        name=names.volume_name("pvc", -1, UID),
        required_bytes=claims.requested_bytes(CLAIM),
        capabilities=capability.volume_capabilities(
            CLAIM, CLASS, parameters.fstype(values), multi_writer=True
        ),
        parameters=parameters.strip(values) | parameters.extra_metadata(CLAIM, NAME),
        secrets=secrets.decode(SECRET, ref),
        requirements=csi.TopologyRequirement(
            requisite=zones("z1", "z2", "z3"), preferred=zones("z2", "z3", "z1")
        ),
        mutable_parameters=attributes_class.mutable_parameters(VAC, DRIVER),
    )


def make_volume(values, request):
    response = csi.CreateVolumeResponse(
        volume=csi.Volume(
            volume_id="v-1",
            capacity_bytes=10737418240,
            volume_context={"pool": "p7"},
            accessible_topology=zones("z2"),
        )
    )
    assert volume.check_response(request, response) is None
    built = volume.build_volume(
        name=request.name,
        driver_name=DRIVER,
        identity=IDENTITY,
        claim=CLAIM,
        storage_class=CLASS,
        volume=response.volume,
        required_bytes=request.capacity_range.required_bytes,
        fs_type=parameters.fstype(values),
        provisioner_secret=secrets.resolve(secrets.SecretKind.PROVISIONER, values, NAME, CLAIM),
        secrets=secrets.resolve_volume_secrets(values, NAME, CLAIM),
        node_affinity=node_affinity(response.volume.accessible_topology),
        attributes_class="gold",
    )
    return volume.complete_volume(built, claim=CLAIM, storage_class=CLASS)


def test_appendix_a_request():
    request = make_request(CLASS["parameters"])
    assert json_format.MessageToDict(request, preserving_proto_field_name=True) == {
        "name": NAME,
        "capacity_range": {"required_bytes": "10737418240"},
        "volume_capabilities": [
            {
                "mount": {"fs_type": "xfs", "mount_flags": ["noatime"]},
                "access_mode": {"mode": "SINGLE_NODE_MULTI_WRITER"},
            }
        ],
        "parameters": {
            "type": "ssd",
            f"{PREFIX}pvc/name": "data-db-0",
            f"{PREFIX}pvc/namespace": "shop",
            f"{PREFIX}pv/name": NAME,
        },
        "secrets": {"user": "shop", "key": "open"},
        "accessibility_requirements": {
            "requisite": [{"segments": {ZONE: z}} for z in ("z1", "z2", "z3")],
            "preferred": [{"segments": {ZONE: z}} for z in ("z2", "z3", "z1")],
        },
        "mutable_parameters": {"iops": "5000"},
    }


def test_appendix_a_volume():
    values = CLASS["parameters"]
    assert make_volume(values, make_request(values)) == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": NAME,
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "creds-shop",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "storage",
            },
        },
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "mountOptions": ["noatime"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeAttributesClassName": "gold",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "shop",
                "name": "data-db-0",
                "uid": UID,
                "resourceVersion": "811",
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z2"]}]}
                    ]
                }
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": "v-1",
                "fsType": "xfs",
                "volumeAttributes": {
                    "storage.kubernetes.io/csiProvisionerIdentity": IDENTITY,
                    "pool": "p7",
                },
            },
        },
    }


def test_appendix_a_with_the_default_secret_keys():
    """The appendix's last line: default keys add five references and two annotations."""
    values = {
        "type": "ssd",
        f"{PREFIX}secret-name": "creds-${pvc.namespace}",
        f"{PREFIX}secret-namespace": "storage",
    }
    made = make_volume(values, make_request(values))
    refs = {key: ref for key, ref in made["spec"]["csi"].items() if key.endswith("SecretRef")}
    assert len(refs) == 5
    assert all(ref == {"name": "creds-shop", "namespace": "storage"} for ref in refs.values())
    annotations = made["metadata"]["annotations"]
    assert annotations["volume.kubernetes.io/controller-modify-secret-name"] == "creds-shop"
    assert annotations["volume.kubernetes.io/controller-modify-secret-namespace"] == "storage"
