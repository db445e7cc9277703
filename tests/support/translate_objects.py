"""The fixture of the specification's test cases: claim, class, driver and one attempt without
I/O."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from csi_client import messages as csi
from workers.translate import (
    attributes_class,
    capability,
    claims,
    parameters,
    sources,
)
from workers.translate import secrets as secret_rules
from workers.translate.fields import text_map
from workers.translate.names import volume_name
from workers.translate.request import build_request
from workers.translate.volume import build_volume, check_response, complete_volume

DRIVER = "test-driver"
PREFIX = "csi.storage.k8s.io/"
BETA = "volume.beta.kubernetes.io/storage-provisioner"
GA = "volume.kubernetes.io/storage-provisioner"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
DELETION_NAME = "volume.kubernetes.io/provisioner-deletion-secret-name"
DELETION_NAMESPACE = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"


def make_claim(
    *,
    annotations: dict[str, str] | None = None,
    request: str | None = "100",
    uid: str = "testid",
    **spec: Any,
) -> dict[str, Any]:
    """Return the claim of fixture F: fake-ns/fake-pvc, 100 bytes, ReadWriteOnce."""
    found: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fake-test-sc"}
    if request is not None:
        found["resources"] = {"requests": {"storage": request}}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "fake-ns",
            "name": "fake-pvc",
            "uid": uid,
            "resourceVersion": "7",
            "annotations": {BETA: DRIVER} if annotations is None else annotations,
        },
        "spec": found | spec,
    }


def make_class(parameters: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return the class of fixture F: fake-test-sc of test-driver, reclaim policy Delete."""
    return {
        "metadata": {"name": "fake-test-sc"},
        "provisioner": DRIVER,
        "reclaimPolicy": "Delete",
        "parameters": parameters or {},
    } | fields


def make_secret(**data: str) -> dict[str, Any]:
    """Return a secret as the API server returns it."""
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


@dataclass
class Attempt:
    """The steps of one attempt without I/O, in upstream's order; objects are read from
    dictionaries."""

    plugin: set[str] = field(default_factory=lambda: {"CONTROLLER_SERVICE"})
    controller: set[str] = field(default_factory=lambda: {"CREATE_DELETE_VOLUME"})
    prefix: str = "test"
    uuid_length: int = 5
    default_fstype: str = "ext4"
    extra_create_metadata: bool = False
    publish_readonly: bool = False
    attributes_gate: bool = True
    secrets: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    attributes_classes: dict[str, dict[str, Any]] = field(default_factory=dict)

    request: csi.CreateVolumeRequest | None = None
    """Set if CreateVolume would be called; None means that no call is made."""

    def provision(
        self,
        claim: dict[str, Any],
        storage_class: dict[str, Any],
        answer: csi.Volume | None = None,
    ) -> dict[str, Any]:
        """Run the attempt and return the PV before the loop's additions."""
        source = sources.normalise(claim, cross_namespace=False)
        if source is not None:
            sources.check_source(source)
        vac = attributes_class.attributes_class_name(claim, is_enabled=self.attributes_gate)
        capability.check_driver(self.plugin, self.controller, source=source, needs_modify=bool(vac))
        claims.check_selector(claim)
        name = volume_name(self.prefix, self.uuid_length, claim["metadata"]["uid"])
        values = text_map(storage_class, "parameters")
        fs_type = parameters.fstype(values, self.default_fstype)
        capabilities = capability.volume_capabilities(
            claim,
            storage_class,
            fs_type,
            multi_writer="SINGLE_NODE_MULTI_WRITER" in self.controller,
        )
        ref = secret_rules.resolve(secret_rules.SecretKind.PROVISIONER, values, name, claim)
        data = {} if ref is None else self._secret(ref)
        refs = secret_rules.resolve_volume_secrets(values, name, claim)
        sent = parameters.strip(values)
        if self.extra_create_metadata:
            sent |= parameters.extra_metadata(claim, name)
        self.request = build_request(
            name=name,
            required_bytes=claims.requested_bytes(claim),
            capabilities=capabilities,
            parameters=sent,
            secrets=data,
            mutable_parameters=self._mutable(vac) if vac else None,
        )
        required = self.request.capacity_range.required_bytes
        if answer is None:
            answer = csi.Volume(volume_id="test-volume-id", capacity_bytes=required)
        rejection = check_response(self.request, csi.CreateVolumeResponse(volume=answer))
        if rejection is not None:
            raise rejection.error()
        return build_volume(
            name=name,
            driver_name=DRIVER,
            identity="test-provisioner",
            claim=claim,
            storage_class=storage_class,
            volume=answer,
            required_bytes=required,
            fs_type=fs_type,
            provisioner_secret=ref,
            secrets=refs,
            attributes_class=vac,
            read_only=capability.is_read_only(
                capabilities, controller_publish_readonly=self.publish_readonly
            ),
        )

    def save(self, claim: dict[str, Any], storage_class: dict[str, Any]) -> dict[str, Any]:
        """Run the attempt and return the PV as it is saved."""
        volume = self.provision(claim, storage_class)
        return complete_volume(volume, claim=claim, storage_class=storage_class)

    @property
    def sent(self) -> csi.CreateVolumeRequest:
        """Return the request that was made."""
        assert self.request is not None, "CreateVolume was not called"
        return self.request

    def _secret(self, ref: secret_rules.SecretRef) -> dict[str, str]:
        found = self.secrets.get((ref.namespace, ref.name))
        if found is None:
            raise secret_rules.read_failed(ref, f'secrets "{ref.name}" not found')
        return secret_rules.decode(found, ref)

    def _mutable(self, name: str) -> dict[str, str]:
        found = self.attributes_classes.get(name)
        if found is None:
            raise attributes_class.read_failed(
                f'volumeattributesclasses.storage.k8s.io "{name}" not found'
            )
        return attributes_class.mutable_parameters(found, DRIVER)
