"""The attacher as data: names, flags, settings, rights."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.support.attach_world import PUBLISHES, AttachWorld
from workers.config.load import parse
from workers.controllers.attacher import names
from workers.controllers.attacher.controller import CONTROLLER
from workers.controllers.attacher.settings import AttacherSettings, read_settings
from workers.controllers.attacher.spec import FLAGS, SPEC
from workers.errors import ConfigError
from workers.queue.locks import Lock

ROOT = Path(__file__).resolve().parents[4]


def defaults():
    values = {flag.name: flag.default_value() for flag in FLAGS}
    return values | {"feature-gates": {}}


def test_ta110_names_of_an_odd_driver():
    """A-007, A-020."""
    assert names.finalizer("a/b.c_") == "external-attacher/a-b-c-X"
    assert SPEC.lease_name is not None
    assert SPEC.lease_name("a/b.c_") == "external-attacher-leader-a-b-c-X"
    assert SPEC.lease_name("ebs.csi.aws.com") == "external-attacher-leader-ebs-csi-aws-com"
    assert names.finalizer("Att-83.Golden") == "external-attacher/Att-83-Golden"


def test_a100_defaults_are_the_references():
    """A-100."""
    assert read_settings(defaults()) == AttacherSettings()


@pytest.mark.parametrize("value", [True, False])
def test_a101_gate(value):
    """A-101."""
    gates = {"MutableCSINodeAllocatableCount": value}
    assert read_settings(defaults() | {"feature-gates": gates}).writes_error_code is value


def test_ta111_no_worker_threads():
    """A-003: the reference's words and exit code."""
    with pytest.raises(ConfigError, match="Option -worker-threads must be greater than zero") as no:
        read_settings(defaults() | {"worker-threads": 0})
    assert no.value.exit_code == 1


@pytest.mark.parametrize(
    ("controllers", "is_refused"), [("attacher", True), ("attacher,provisioner", False)]
)
def test_unknown_gate(controllers, is_refused):
    """A-101: refused as csi-attacher does; old manifests of csi-provisioner name dropped ones."""
    arguments = [f"--controllers={controllers}", "--feature-gates=NoSuchGate=true"]
    arguments += ["--redis-url=redis://127.0.0.1:1/0"]
    if is_refused:
        with pytest.raises(ConfigError, match="failed to store flag gates") as refusal:
            parse("worker", arguments, {})
        assert refusal.value.exit_code == 1
    else:
        parse("worker", arguments, {})


def test_a110_permissions():
    """A-077, A-110: no more than the reference's, but for events; secrets only as a feature."""
    base = {(one.group, name): one.verbs for one in SPEC.permissions if not one.feature
            for name in one.resources}  # fmt: skip
    assert base == {
        ("", "persistentvolumes"): ("get", "list", "watch", "patch"),
        ("storage.k8s.io", "csinodes"): ("get", "list", "watch"),
        ("storage.k8s.io", "volumeattachments"): ("get", "list", "watch", "patch"),
        ("storage.k8s.io", "volumeattachments/status"): ("patch",),
        ("", "events"): ("create", "patch"),
    }
    (secrets,) = [one for one in SPEC.permissions if one.feature]
    assert (secrets.feature, secrets.verbs) == ("secrets", ("get",))


def test_a112_names_of_the_work_queues():
    """A-030, A-112: upstream's dashboards find theirs."""
    queues = {kind.name: kind.work_queue for kind in SPEC.kinds}
    assert queues[names.ATTACHMENTS] == "csi-attacher-va"
    assert queues[names.FINALIZERS] == "csi-attacher-pv"


def test_a030_limits():
    """A-030, DA-023: worker threads for each queue, detaches apart from attaches."""
    world = AttachWorld(worker_threads=7)
    limits = CONTROLLER.limits(world.driver)
    assert limits == {
        names.ATTACHMENTS: 7,
        names.DETACHMENTS: 7,
        names.FORCED: 2,
        names.FINALIZERS: 7,
        names.RECONCILE: 1,
    }


def test_ta119_one_pass_at_a_time_for_an_attachment():
    """A-030, MA-010: forced or not, the same lock is taken with the key."""
    world = AttachWorld(capabilities=PUBLISHES)
    parts = ("csi/test", "node1", "va", "u1")
    found = {CONTROLLER.locks(key, world.driver) for key in names.keys_of(*parts)}
    assert found == {(Lock("va#u1"),)}
    assert CONTROLLER.locks(names.reconcile_key("csi/test"), world.driver) == ()


def test_a110_shipped_rights_are_those_of_the_spec():
    """Watcher and worker together have what the spec lists, no verb more."""
    path = ROOT / "k8s/components/controller-attacher/clusterroles.yaml"
    shipped = defaultdict(set)
    for role in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        for rule in role["rules"]:
            for resource in rule["resources"]:
                shipped[rule["apiGroups"][0], resource] |= set(rule["verbs"])
    wanted = {
        (one.group, name): set(one.verbs)
        for one in SPEC.permissions
        if not one.feature
        for name in one.resources
    }
    assert shipped == wanted
