"""Lets an API server reject the PVs of one driver for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.kube_api import KubeApi, KubeApiError
from tests.support.waiting import wait_until

SECONDS = 60


@contextmanager
def volumes_refused(api: KubeApi, driver_name: str) -> Iterator[None]:
    """Yield while an admission policy rejects the driver's PVs; like most policies, it names no
    reason (422)."""
    group = "admissionregistration.k8s.io/v1"
    meta = {"metadata": {"name": f"no-volumes-{driver_name}"}}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["persistentvolumes"],
    }
    expression = f"!has(object.spec.csi) || object.spec.csi.driver != '{driver_name}'"
    policy = {
        "apiVersion": group,
        "kind": "ValidatingAdmissionPolicy",
        **meta,
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression, "message": "no volumes today"}],
        },
    }
    binding = {
        "apiVersion": group,
        "kind": "ValidatingAdmissionPolicyBinding",
        **meta,
        "spec": {"policyName": meta["metadata"]["name"], "validationActions": ["Deny"]},
    }
    probe = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "probe"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": driver_name, "volumeHandle": "x"},
        },
    }

    def is_refused() -> bool:
        try:
            api.request("POST", "/api/v1/persistentvolumes", probe, params={"dryRun": "All"})
        except KubeApiError:
            return True
        return False

    api.create(policy)
    api.create(binding)
    try:
        wait_until(is_refused, SECONDS, "the policy holds")
        yield
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            api.delete(f"/apis/{group}/{kind}/{meta['metadata']['name']}")
        wait_until(lambda: not is_refused(), SECONDS, "the policy is gone")
