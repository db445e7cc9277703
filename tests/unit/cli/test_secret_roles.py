"""`csi-fleet secret-roles` prints permissions only for the Secrets of the driver's classes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml

from tests.support.memory_api import MemoryApi
from workers.cli import secret_roles
from workers.config.settings import Settings
from workers.config.toolflags import ToolSettings
from workers.errors import ConfigError
from workers.kube import paths

PREFIX = "csi.storage.k8s.io/provisioner-secret"


@pytest.fixture
def api():
    api = MemoryApi()
    for name, driver, secret, namespace in (
        ("fast", "a.example", "key", "vault"),
        ("slow", "b.example", "${pvc.name}", "other"),
        ("own", "a.example", "key", "${pvc.namespace}"),
    ):
        parameters = {f"{PREFIX}-name": secret, f"{PREFIX}-namespace": namespace}
        body = {"metadata": {"name": name}, "provisioner": driver, "parameters": parameters}
        api.add(paths.STORAGE_CLASSES, body)
    claim = {"metadata": {"name": "data", "namespace": "shop"}, "spec": {"storageClassName": "own"}}
    api.add(paths.CLAIMS, claim)
    return api


def printed(api, capsys, **options):
    tools = SimpleNamespace(kube=api.kube, settings=Settings(tool=ToolSettings(**options)))
    assert secret_roles.run(tools) == 0
    text = capsys.readouterr().out
    return text, [one for one in yaml.safe_load_all(text) if one]


def test_one_role_and_binding_per_namespace_with_names_where_they_are_fixed(api, capsys):
    text, found = printed(api, capsys, accounts=("csi-driver/driver",))
    given = {
        one["metadata"]["namespace"]: one["rules"][0].get("resourceNames")
        for one in found
        if one["kind"] == "Role"
    }
    assert given == {"vault": ["key"], "other": None, "shop": ["key"]}
    bindings = [one for one in found if one["kind"] == "RoleBinding"]
    subject = {"kind": "ServiceAccount", "name": "driver", "namespace": "csi-driver"}
    assert [one["subjects"] for one in bindings] == [[subject]] * 3
    assert "# StorageClass own takes the namespace from ${pvc.namespace}" in text


def test_a_driver_gets_its_own_classes_only(api, capsys):
    _, found = printed(api, capsys, driver="b.example")
    assert {one["metadata"]["namespace"] for one in found} == {"other"}
    assert {one["metadata"]["name"] for one in found} == {"csi-fleet-secrets-b.example"}


def test_nothing_is_printed_without_secrets(capsys):
    assert printed(MemoryApi(), capsys) == ("# no storage class names a Secret\n", [])


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("c.example", "# no storage class of driver c.example names a Secret\n"),
        ("ebs.csi.aws.com", "# no storage class of driver ebs.csi.aws.com names a Secret\n"),
        (
            "a.exaample",
            '# no storage class belongs to driver "a.exaample". Did you mean "a.example"?\n',
        ),
    ],
)
def test_a_driver_without_secrets_is_told_from_a_mistyped_one(api, capsys, driver, said):
    for name, provisioner in (("plain", "c.example"), ("in-tree", "kubernetes.io/aws-ebs")):
        api.add(paths.STORAGE_CLASSES, {"metadata": {"name": name}, "provisioner": provisioner})
    assert printed(api, capsys, driver=driver) == (said, [])


def test_an_account_without_namespace_is_refused(api, capsys):
    with pytest.raises(ConfigError, match="NAMESPACE/NAME"):
        printed(api, capsys, accounts=("driver",))


def test_no_secret_is_read(api, capsys):
    """The user who runs it needs no permission on Secrets."""
    printed(api, capsys)
    assert not [one for one in api.requests if "secrets" in one.path]
