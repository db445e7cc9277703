"""The attacher's spec: names, flags, settings, permissions."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.support.attach_world import PUBLISHES, AttachWorld
from workers.config.load import parse
from workers.controllers.attacher import names
from workers.controllers.attacher.controller import CONTROLLER
from workers.controllers.attacher.spec import FLAGS, SPEC, AttacherSettings, read_settings
from workers.controllers.attacher.volume import AttachError, Source
from workers.errors import ConfigError
from workers.queue.locks import Lock

ROOT = Path(__file__).resolve().parents[4]


def defaults():
    values = {flag.name: flag.default_value() for flag in FLAGS}
    return values | {"feature-gates": {}}


def test_ta110_names_of_an_odd_driver():
    """A-007, A-020: Characters that are not allowed are replaced."""
    assert names.finalizer("a/b.c_") == "external-attacher/a-b-c-X"
    assert SPEC.lease_name is not None
    assert SPEC.lease_name("a/b.c_") == "external-attacher-leader-a-b-c-X"
    assert SPEC.lease_name("ebs.csi.aws.com") == "external-attacher-leader-ebs-csi-aws-com"
    assert names.finalizer("Att-83.Golden") == "external-attacher/Att-83-Golden"


def test_a100_defaults_are_the_references():
    """A-100: The defaults are csi-attacher's."""
    assert read_settings(defaults()) == AttacherSettings()


@pytest.mark.parametrize("value", [True, False])
def test_a101_gate(value):
    """A-101: The gate decides if errors have a code."""
    gates = {"MutableCSINodeAllocatableCount": value}
    assert read_settings(defaults() | {"feature-gates": gates}).writes_error_code is value


# Default, if it is csi-attacher's own flag, the allowed values, and why it has no effect.
WORDS = "at verbosity 5, responses are logged in full"
FLAG_TABLE = {
    "timeout": ("15s", True, "be greater than 0", ""),
    "worker-threads": ("10", True, "", ""),
    "retry-interval-start": ("1s", True, "be greater than 0", ""),
    "retry-interval-max": ("5m", True, "be greater than 0", ""),
    "resync": ("10m", True, "", ""),
    "reconcile-sync": ("1m", True, "", ""),
    "max-entries": ("0", True, "", ""),
    "default-fstype": ("", True, "", ""),
    "max-grpc-log-length": ("-1", True, "", WORDS),
    "reconcile-timeout": ("10m", False, "", ""),
    "detach-without-missing-secret": ("false", False, "", ""),
    "strict-single-node": ("true", False, "", ""),
    "max-ops-per-node": ("0", False, "", ""),
    "attach-record-annotation": ("", False, "", ""),
}


def test_a100_flags():
    """A-100: The flags are external-attacher v4.11's and csi-fleet's own, marked in `--help`."""
    assert {
        flag.name: (
            flag.default,
            flag.upstream,
            flag.bound.says if flag.bound else "",
            flag.ignored,
        )
        for flag in FLAGS
    } == FLAG_TABLE


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a100_commands_that_take_a_flag(flag):
    """Commands that run the controller take all flags.

    Beat takes the period, and tools that call a driver take the timeout.
    """
    more = {
        "timeout": {"audit", "conformance", "doctor"},
        "reconcile-sync": {"beat"},
        "resync": {"watcher"},
    }
    assert set(flag.commands) == {"run", "worker"} | more.get(flag.name, set())


def test_da010_settings_of_the_reference():
    """A-100, A-101: These settings apply to a driver without settings of its own."""
    assert read_settings(defaults()) == AttacherSettings(
        timeout_seconds=15.0,
        worker_threads=10,
        retry_interval_start_seconds=1.0,
        retry_interval_max_seconds=300.0,
        reconcile_seconds=60.0,
        reconcile_timeout_seconds=600.0,
        max_entries=0,
        default_fstype="",
        writes_error_code=True,
        detaches_without_missing_secret=False,
        is_strict_single_node=True,
        max_ops_per_node=0,
        record_annotation="",
    )


@pytest.mark.parametrize(
    ("plugin", "capabilities"),
    [(("CONTROLLER_SERVICE",), PUBLISHES), (("CONTROLLER_SERVICE",), ()), ((), ())],
    ids=["attaches", "does not attach", "no controller"],
)
def test_a004_every_driver_is_served(plugin, capabilities):
    """A-004, A-075: If a driver cannot attach, its attachments are marked as attached anyway."""
    world = AttachWorld(plugin=plugin, capabilities=capabilities)
    assert CONTROLLER.serves(world.driver) is True


@pytest.mark.parametrize(("threads", "forced"), [(1, 1), (2, 2), (3, 2)])
def test_a003_fewest_worker_threads(threads, forced):
    """A-003: One thread is enough; forced reconciles use at most two threads."""
    settings = read_settings(defaults() | {"worker-threads": threads})
    world = AttachWorld(worker_threads=settings.worker_threads)
    limits = CONTROLLER.limits(world.driver)
    assert (limits[names.ATTACHMENTS], limits[names.FORCED]) == (threads, forced)


def test_what_is_not_said_of_an_error_or_a_volume():
    """No code is invented (A-057); by default nothing is missing (DA-007) or migrated (A-072)."""
    error = AttachError("boom")
    assert (str(error), error.message, error.code, error.reason) == (
        "boom",
        "boom",
        None,
        names.Reason.OTHER,
    )
    assert Source({"csi": {}}).is_migrated is False


def test_ta111_no_worker_threads():
    """A-003: Text and exit code are csi-attacher's."""
    with pytest.raises(ConfigError, match="Option -worker-threads must be greater than zero") as no:
        read_settings(defaults() | {"worker-threads": 0})
    assert no.value.exit_code == 1


@pytest.mark.parametrize(
    ("controllers", "is_refused"), [("attacher", True), ("attacher,provisioner", False)]
)
def test_unknown_gate(controllers, is_refused):
    """A-101: csi-attacher refuses it too; old manifests of csi-provisioner name removed gates."""
    arguments = [f"--controllers={controllers}", "--feature-gates=NoSuchGate=true"]
    arguments += ["--redis-url=redis://127.0.0.1:1/0"]
    if is_refused:
        with pytest.raises(ConfigError, match="failed to store flag gates") as refusal:
            parse("worker", arguments, {})
        assert refusal.value.exit_code == 1
    else:
        parse("worker", arguments, {})


def test_a110_permissions():
    """A-077, A-110: They are csi-attacher's and those for events; secrets are a feature."""
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
    """A-030, A-112: Upstream's dashboards use these names."""
    queues = {kind.name: kind.work_queue for kind in SPEC.kinds}
    assert queues[names.ATTACHMENTS] == "csi-attacher-va"
    assert queues[names.FINALIZERS] == "csi-attacher-pv"


def test_a030_limits():
    """A-030, DA-023: Each queue is limited to the worker threads; detaches have their own queue."""
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
    """A-030, MA-010: Forced or not, the key takes the same lock."""
    world = AttachWorld(capabilities=PUBLISHES)
    parts = ("csi/test", "node1", "va", "u1")
    found = {CONTROLLER.locks(key, world.driver) for key in names.keys_of(*parts)}
    assert found == {(Lock("va#u1"),)}
    assert CONTROLLER.locks(names.reconcile_key("csi/test"), world.driver) == ()


def test_a110_shipped_rights_are_those_of_the_spec():
    """The watcher and the worker together have exactly the verbs that the spec lists."""
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
