"""adopt --as central: gateway, drivers entry and other objects; runs interrupted at any request."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import stat
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.unit.cli import test_adopt
from tests.unit.cli.test_adopt import DRIVER, Drawn, Killed, World, applied, programs_in, simple
from workers.cli import adopt, adoptcentral, adoptplan, certificates, gateway
from workers.cli.adoptcentral import ADOPTED, AUTHORITY, CLIENT, POLICIES, ROLES, SERVICES
from workers.cli.adoptplan import RECORD, Choice
from workers.cli.centralentry import Central, text_of_entry
from workers.cli.tools import Tools
from workers.config.load import parse
from workers.drivers import driversfile
from workers.kube import paths

NAME = "csi-fleet-ebs-csi-aws-com"
ALL = "provisioner,attacher,resizer,snapshotter"
CENTRAL = Central("csi-fleet", "reg/csi-fleet:1", controllers=ALL)


def mounted(item):
    """Mount the folder of the socket into the sidecars."""
    for one in item["spec"]["template"]["spec"]["containers"]:
        if "args" in one:
            one["volumeMounts"] = [{"name": "socket", "mountPath": "/csi"}]
    item["spec"]["template"]["spec"]["volumes"] = [{"name": "socket", "emptyDir": {}}]
    return item


def told(item, program, *words):
    for one in item["spec"]["template"]["spec"]["containers"]:
        if one["name"] == program:
            one["args"] += words
    return item


def choice(**fields):
    return Choice(DRIVER, mode="central", **fields)


def plan_of(item, central=CENTRAL, **fields):
    return adoptplan.adopt(item, central, choice(**fields))


def texts(plan, state):
    return " ".join(one.text for one in plan.findings if one.state == state)


def spec_of(entry):
    """Parse the entry as the workers do."""
    plain = {key: value for key, value in entry.items() if key != "tls"} | {"insecure": True}
    (spec,) = driversfile.parse(text_of_entry(plain), Path("entry")).values()
    return spec


@pytest.mark.parametrize("seed", range(40))
def test_a_gateway_takes_the_sidecars_place_and_gives_it_back(seed):
    drawn = Drawn(seed)
    if drawn.kind == "StatefulSet":
        drawn.item["spec"]["replicas"] = 1
    before = copy.deepcopy(drawn.item)
    wanted = replace(drawn.choice, mode="central")
    plan = adoptplan.adopt(drawn.item, CENTRAL, wanted)
    assert not plan.is_refused, plan.findings
    adopted = applied(drawn.item, plan.patch)
    assert programs_in(adopted) == []
    assert adopted["spec"]["template"]["metadata"]["labels"][gateway.LABEL] == NAME
    if drawn.kind == "Deployment":
        assert adopted["spec"]["strategy"]["type"] == "Recreate", "no two of them at once"
    settled = applied(adopted, adoptplan.settle(adopted))
    again = adoptplan.adopt(settled, CENTRAL, wanted)
    assert again.patch is None
    assert again.entry == plan.entry
    back = adoptplan.release(settled, Choice(DRIVER)).patch
    released = applied(settled, back)
    if drawn.kind == "Deployment":
        assert released["spec"]["strategy"]["type"] == "Recreate"
    released = applied(released, adoptplan.settle(released))
    released["metadata"].pop("annotations")
    assert released == before


@pytest.mark.parametrize("fields", [{}, {"any_replica": True}, {"one_replica": True}])
def test_the_workloads_own_strategy_comes_back_once_the_gateway_works(fields):
    item = mounted(simple(replicas=2))
    adopted = applied(item, plan_of(item, **fields).patch)
    assert adopted["spec"]["strategy"]["type"] == "Recreate"
    assert (
        applied(adopted, adoptplan.settle(adopted))["spec"]["strategy"]["type"] == "RollingUpdate"
    )


def test_an_adoption_of_an_earlier_release_keeps_recreate():
    """In a rolling update its Service would spread the workers over two pods."""
    adopted = applied(mounted(simple()), plan_of(mounted(simple())).patch)
    record = adoptplan.record_of(adopted)
    del record["chosen"]
    adopted["metadata"]["annotations"][RECORD] = json.dumps(record)
    assert adoptplan.settle(adopted) is None


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_all_workers_call_the_same_replica_unless_any_will_do(replicas):
    """This includes a driver with one replica, because it may be scaled up later."""
    item = mounted(simple(replicas=replicas))
    assert spec_of(plan_of(item).entry).is_one_replica
    assert not spec_of(plan_of(item, any_replica=True).entry).is_one_replica
    words = texts(plan_of(item), "warn")
    assert ("when no worker can reach it" in words) is (replicas > 1)


def test_a_service_resolves_to_its_pods_unless_any_will_do(world):
    assert world.run("adopt") == 0
    assert world.api.of(SERVICES, NAME, "kube-system")["spec"]["clusterIP"] == "None"
    assert world.run("release") == 0
    assert world.run("adopt", "--any-replica") == 0
    assert "clusterIP" not in world.api.of(SERVICES, NAME, "kube-system")["spec"]
    world.api.change(SERVICES, NAME, {"spec": {"clusterIP": "10.0.0.9"}}, "kube-system")
    assert world.run("adopt", "--any-replica") == 0
    assert world.api.of(SERVICES, NAME, "kube-system")["spec"]["clusterIP"] == "10.0.0.9"


def test_the_entry_says_what_the_sidecars_were_told():
    item = told(mounted(simple()), "csi-provisioner", "--timeout=60s", "--extra-create-metadata")
    told(item, "csi-attacher", "--timeout=2m", "--worker-threads=7", "--v=5")
    plan = plan_of(item)
    assert plan.entry["endpoint"] == f"{NAME}.kube-system.svc:10443"
    spec = spec_of(plan.entry)
    assert spec.flags["timeout"] == 60.0
    assert spec.flags["extra-create-metadata"] is True
    assert spec.controller_flags["attacher"] == {"timeout": 120.0, "worker-threads": 7}


def test_a_value_of_the_workers_own_is_not_the_drivers():
    """The shipped workers set --extra-create-metadata; this driver's csi-provisioner does not."""
    central = replace(CENTRAL, arguments=["--extra-create-metadata", "--provisioner-timeout=99s"])
    spec = spec_of(plan_of(mounted(simple()), central).entry)
    assert spec.flags["extra-create-metadata"] is False
    assert spec.flags["timeout"] == 10.0


REFUSED = {
    "controller": ((simple(),), replace(CENTRAL, controllers="provisioner"), "do not run attacher"),
    "capacity": (
        (simple(), "csi-provisioner", "--enable-capacity"),
        CENTRAL,
        "which applies to all drivers",
    ),
    "gate": (
        (simple(), "csi-provisioner", "--feature-gates=Topology=false"),
        CENTRAL,
        "feature gate Topology=false",
    ),
    "argument": ((simple(), "csi-attacher", "--no-such"), CENTRAL, "does not accept its arguments"),
    "node": ((simple(), "csi-provisioner", "--node-deployment"), CENTRAL, "node by node"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_central_workers_cannot_do_alike_is_refused(case):
    (item, *words), central, word = REFUSED[case]
    item = copy.deepcopy(item)
    if words:
        told(item, *words)
    plan = plan_of(mounted(item), central)
    assert word in texts(plan, "FAIL")
    assert plan.patch is None


def test_a_socket_that_no_volume_has_is_refused():
    assert "is in no volume" in texts(plan_of(simple()), "FAIL")


def test_several_replicas_of_a_stateful_set_are_refused():
    item = mounted(simple(replicas=2)) | {"kind": "StatefulSet"}
    assert "one by one" in texts(plan_of(item, any_replica=True), "FAIL")


def test_several_replicas_attach_one_at_a_time_for_each_node():
    spec = spec_of(plan_of(mounted(simple(replicas=2)), any_replica=True).entry)
    assert (spec.limits_per_node["attach"], spec.limits_per_node["detach"]) == (1, 1)


def test_the_other_mode_is_refused_until_it_is_released():
    adopted = applied(mounted(simple()), plan_of(mounted(simple())).patch)
    plan = adoptplan.adopt(adopted, test_adopt.INSTALLATION, Choice(DRIVER))
    assert "is adopted as central" in texts(plan, "FAIL")


def test_a_newer_image_is_a_new_gateway():
    adopted = applied(mounted(simple()), plan_of(mounted(simple())).patch)
    newer = replace(CENTRAL, image="reg/csi-fleet:2")
    plan = plan_of(adopted, newer)
    again = applied(adopted, plan.patch)
    assert adoptplan._worker(again)["image"] == "reg/csi-fleet:2"
    assert plan_of(again, newer).patch is None


@pytest.mark.parametrize(
    ("driver", "other"),
    [("a.b", "a-b"), ("a.b", "A.b"), ("x" * 63, "x" * 62 + "y"), ("a..b", "a.b"), ("a.b.", "a.b")],
)
def test_names_are_labels_and_apart(driver, other):
    names = [gateway.name_of(driver), gateway.name_of(other)]
    assert names[0] != names[1]
    for name in names:
        assert len(name) <= 63
        assert name == name.lower().strip("-").replace(".", "")


# Certificates.


def test_a_certificate_is_for_one_name_one_authority_and_a_time():
    authority, key = certificates.make_authority("a")
    other, _ = certificates.make_authority("a")
    own, _ = certificates.sign(authority, key, ["x.svc"], certificates.SERVER)
    assert certificates.is_good(own, authority, "x.svc")
    assert not certificates.is_good(own, authority, "y.svc")
    assert not certificates.is_good(own, other, "x.svc")
    assert not certificates.is_good(b"", authority, "x.svc")
    late = datetime.now(UTC) + timedelta(days=2500)
    assert not certificates.is_good(own, authority, "x.svc", late), "a third is left no more"


@contextmanager
def days_before_the_end(days):
    """Certificates made within this context expire in `days` days."""

    class Then(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - certificates.LIFE + timedelta(days=days, minutes=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "datetime", Then)
        yield


def test_a_signed_certificate_ends_with_its_authority_and_a_renewed_one_keeps_it_good():
    with days_before_the_end(20):
        authority, key = certificates.make_authority("a")
    own, _ = certificates.sign(authority, key, ["x.svc"], certificates.SERVER)
    assert certificates.lasting(own) == (True, "ends in 20 days")
    renewed = certificates.renew_authority(authority, key)
    assert certificates.lasting(renewed) == (True, "")
    assert certificates.is_good(own, renewed, "x.svc")
    assert certificates.is_of_key(authority, renewed)
    assert not certificates.is_of_key(authority, certificates.make_authority("a")[0])
    assert certificates.lasting(authority + renewed, is_bundle=True) == (True, "")


# Runs of the commands.


class CentralWorld(World):
    """A world with central workers, which reach the driver once its pods have the gateway."""

    def __init__(self, item=None):
        super().__init__(item or mounted(simple()))
        worker = {
            "name": "worker",
            "image": "reg/csi-fleet:1",
            "args": ["worker", "--drivers-file=/etc/csi-fleet/drivers"],
            "env": [{"name": "CSI_FLEET_CONTROLLERS", "value": ALL}],
        }
        metadata = {"name": "worker", "namespace": "csi-fleet"}
        spec = {"template": {"spec": {"containers": [worker]}}}
        self.api.add(paths.DEPLOYMENTS, {"metadata": metadata, "spec": spec})
        self.fresh = set(self.api.objects)

    def run(self, command, *words, sleep=None):
        words = ("--as=central", *words) if command == "adopt" else words
        settings = parse(command, [DRIVER, *words], {})
        tools = Tools(settings)
        tools.kube = self.api.kube
        tool = settings.tool
        wanted = Choice(
            DRIVER, tool.one_replica, tool.any_replica, tool.force, tool.secret, tool.mode
        )
        clock = lambda: self.seconds  # noqa: E731
        move = adopt.Move(tools, wanted, "kube-system/ebs", sleep=sleep or self.sleep, clock=clock)
        return move.adopt() if command == "adopt" else move.release()

    def is_served(self):
        """Return True if a worker has an entry, a certificate and pods with a gateway."""
        item = self.workload
        entries = self.api.of(paths.CONFIG_MAPS, ADOPTED, "csi-fleet")
        service = self.api.of(SERVICES, NAME, "kube-system")
        labels = item["spec"]["template"]["metadata"]["labels"]
        return bool(
            (entries or {}).get("data", {}).get(f"{NAME}.yaml")
            and service
            and service["spec"]["selector"].items() <= labels.items()
            and self.api.of(paths.SECRETS, CLIENT, "csi-fleet")
            and self.api.of(paths.SECRETS, NAME, "kube-system")
        )

    def added(self):
        """Return the objects added since the start, except those of the Deployment controller."""
        return {one for one in self.api.objects.keys() - self.fresh if "/pods/" not in one}


@pytest.fixture
def world(monkeypatch):
    return started(monkeypatch)


def started(monkeypatch, item=None):
    made = CentralWorld(item)
    monkeypatch.setattr(adoptcentral, "is_served", lambda *_: made.is_served())
    return made


def test_a_driver_is_adopted_centrally_and_released(world, capsys):
    before = world.workload["spec"]
    assert world.run("adopt") == 0
    assert [one["name"] for one in world.workload["spec"]["template"]["spec"]["containers"]] == [
        "driver",
        gateway.NAME,
    ]
    role = world.api.of(ROLES, "csi-fleet-adopted-ebs-csi-aws-com")
    assert role["rules"][0]["resourceNames"] == [DRIVER]
    written = len(world.api.writes)
    assert world.run("adopt") == 0
    assert len(world.api.writes) == written, "once more is no change"
    assert world.run("release") == 0
    assert world.workload["spec"] == before
    left = {one.rpartition("/")[2] for one in world.added()}
    assert left == {AUTHORITY, CLIENT, ADOPTED}, "these are of all drivers"
    assert not world.api.of(paths.CONFIG_MAPS, ADOPTED, "csi-fleet")["data"]
    assert "central workers serve it" in capsys.readouterr().out


def test_central_command_that_dies_at_any_request_is_repeated_or_undone(monkeypatch):
    """Whenever the next pods have a gateway, the workers have everything to reach it."""
    for command, then in itertools.product(("adopt", "release"), repeat=2):
        for dies_at in itertools.count(1):
            world = started(monkeypatch)
            if command == "release":
                world.run("adopt")
            world.count, world.kills_at, is_killed = 0, dies_at, False
            try:
                world.run(command)
            except Killed:
                is_killed = True
            world.kills_at = None
            if programs_in(world.workload) == []:
                assert world.is_served(), f"{command} was cut off at {dies_at}"
            assert world.run(then) == 0, f"{command} was cut off at {dies_at}"
            is_adopted = then == "adopt"
            assert (programs_in(world.workload) == []) == is_adopted
            assert world.is_served() == is_adopted
            if not is_adopted:
                assert RECORD not in (world.workload["metadata"].get("annotations") or {})
                assert world.workload["spec"]["strategy"]["type"] == "RollingUpdate"
            if not is_killed:
                assert dies_at > 5
                break


def test_what_the_watcher_does_is_no_right_that_a_worker_lacks(world, capsys):
    """In the shipped setup only the watcher watches, and workers get its results from Redis."""
    worker, watcher = (f"system:serviceaccount:csi-fleet:{one}" for one in ("worker", "watcher"))
    world.denied = {(worker, "watch", "persistentvolumes"), (worker, "list", "nodes")}
    assert world.run("adopt", "--dry-run") == 0
    world.denied.add((watcher, "watch", "persistentvolumes"))
    assert world.run("adopt", "--dry-run") == 1
    assert "is not allowed to watch persistentvolumes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "read", ["persistentvolumeclaims", "persistentvolumes", "volumeattachments", "csinodes"]
)
def test_what_a_worker_reads_live_it_has_to_be_allowed_itself(world, capsys, read):
    """Otherwise every reconcile would be refused after the sidecars are gone."""
    world.denied = {("system:serviceaccount:csi-fleet:worker", "get", read)}
    assert world.run("adopt", "--dry-run") == 1
    assert f"is not allowed to get {read}" in capsys.readouterr().out


def test_what_somebody_else_made_is_not_changed(world, capsys):
    world.api.add(SERVICES, {"metadata": {"name": NAME, "namespace": "kube-system"}})
    assert world.run("adopt") == 1
    assert (
        f"Service {NAME} already exists, but `adopt` did not create it" in capsys.readouterr().out
    )


def test_certificates_of_ones_own_need_the_gateways_too(world, capsys):
    mine = {"data": {"tls.crt": base64.b64encode(b"mine").decode()}}
    place = {"metadata": {"name": CLIENT, "namespace": "csi-fleet"}}
    world.api.add(paths.SECRETS, place | mine)
    assert world.run("adopt") == 1
    assert f"Create the Secret kube-system/{NAME}" in capsys.readouterr().out
    world.api.add(paths.SECRETS, {"metadata": {"name": NAME, "namespace": "kube-system"}} | mine)
    assert world.run("adopt") == 0
    assert world.run("release") == 0
    for name, namespace in ((CLIENT, "csi-fleet"), (NAME, "kube-system")):
        assert world.api.of(paths.SECRETS, name, namespace)["data"] == mine["data"]


def test_a_driver_that_is_listed_already_is_refused(world, capsys):
    data = {"drivers.yaml": yaml.safe_dump({"drivers": [{"name": DRIVER, "endpoint": "x:1"}]})}
    metadata = {"name": "drivers", "namespace": "csi-fleet"}
    world.api.add(paths.CONFIG_MAPS, {"metadata": metadata, "data": data})
    assert world.run("adopt") == 1
    assert "already in the drivers file" in capsys.readouterr().out


def with_authority(world, days, labels=None):
    """Store an authority whose certificate expires in `days` days."""
    with days_before_the_end(days):
        certificate, key = certificates.make_authority("a")
    keep(world, AUTHORITY, {"tls.crt": certificate, "tls.key": key}, labels)


def keep(world, name, files, labels=None, namespace="csi-fleet"):
    data = {key: base64.b64encode(text).decode() for key, text in files.items()}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    world.api.add(paths.SECRETS, {"metadata": metadata, "data": data})


def value(world, name, key, namespace="csi-fleet"):
    return base64.b64decode(world.api.of(paths.SECRETS, name, namespace)["data"][key])


@pytest.mark.parametrize("days", [20, -1])
def test_an_authority_that_adopt_made_is_renewed_before_and_after_its_end(world, days):
    made = dict([adoptcentral.MADE])
    with_authority(world, days, made)
    ca, key = value(world, AUTHORITY, "tls.crt"), value(world, AUTHORITY, "tls.key")
    with days_before_the_end(days):
        own, _ = certificates.sign(ca, key, ["worker.csi-fleet"], certificates.CLIENT)
    keep(world, CLIENT, {"ca.crt": ca, "tls.crt": own}, made)
    assert world.run("adopt") == 0
    for name, place in ((CLIENT, "csi-fleet"), (NAME, "kube-system")):
        assert value(world, name, "ca.crt", place) == value(world, AUTHORITY, "tls.crt")
        assert certificates.lasting(value(world, name, "tls.crt", place)) == (True, "")
    assert certificates.is_of_key(ca, value(world, AUTHORITY, "tls.crt")), "others still trust it"
    written = len(world.api.writes)
    assert world.run("adopt") == 0
    assert len(world.api.writes) == written, "once more is no change"


@pytest.mark.parametrize(
    ("days", "code", "says"),
    [(31, 0, ""), (20, 0, "warn: The certificate tls.crt"), (-1, 1, "has ended")],
)
def test_an_authority_of_ones_own_that_ends_is_told_with_the_remedy(
    world, capsys, days, code, says
):
    with_authority(world, days)
    assert world.run("adopt") == code
    said = capsys.readouterr().out
    assert says.lower() in said.lower()
    assert ("renew the certificate" in said) is bool(says)
    assert bool(programs_in(world.workload)) is bool(code), "refused before anything is changed"


def test_what_a_selector_had_before_is_gone(world):
    """A merge would leave a Service that selects no pod."""
    assert world.run("adopt") == 0
    for resource, path in ((SERVICES, ["selector"]), (POLICIES, ["podSelector", "matchLabels"])):
        change = {"old": "label"}
        for one in reversed(path):
            change = {one: change}
        world.api.change(resource, NAME, {"spec": change}, "kube-system")
    assert world.run("adopt") == 0
    label = {gateway.LABEL: NAME}
    assert world.api.of(SERVICES, NAME, "kube-system")["spec"]["selector"] == label
    policy = world.api.of(POLICIES, NAME, "kube-system")["spec"]
    assert policy["podSelector"]["matchLabels"] == label


def test_two_drivers_have_an_authority_and_a_configmap_in_common(world):
    assert world.run("adopt") == 0
    authority = world.api.of(paths.SECRETS, AUTHORITY, "csi-fleet")["data"]
    central = replace(CENTRAL)
    other = adoptcentral.Surroundings(world.api.kube, "nfs.csi.k8s.io", "nfs", central)
    other.make(mounted(simple()), {"name": "nfs.csi.k8s.io", "endpoint": "x:1"})
    assert world.api.of(paths.SECRETS, AUTHORITY, "csi-fleet")["data"] == authority
    assert world.run("release") == 0
    data = world.api.of(paths.CONFIG_MAPS, ADOPTED, "csi-fleet")["data"]
    assert list(data) == ["csi-fleet-nfs-csi-k8s-io.yaml"]


@pytest.mark.parametrize(
    "selector", [{}, {"matchLabels": {"app": "x"}}, {"matchLabels": {"a": "b"}}]
)
def test_the_policy_closes_no_port_that_was_open_and_opens_none_that_was_closed(world, selector):
    spec = {"podSelector": selector, "policyTypes": ["Ingress"]}
    metadata = {"name": "theirs", "namespace": "kube-system"}
    world.api.add(POLICIES, {"metadata": metadata, "spec": spec})
    assert world.run("adopt") == 0
    rules = world.api.of(POLICIES, NAME, "kube-system")["spec"]["ingress"]
    assert rules[0]["ports"] == [{"protocol": "TCP", "port": 10443}]
    assert rules[0]["from"][0]["podSelector"] == {
        "matchLabels": {"app.kubernetes.io/name": "worker"}
    }
    was_closed = selector != {"matchLabels": {"a": "b"}}
    assert len(rules) == (1 if was_closed else 2)


def test_a_central_dry_run_prints_every_object_and_changes_none(world, capsys):
    before = copy.deepcopy(world.api.objects)
    assert world.run("adopt", "--dry-run") == 0
    assert world.api.objects == before
    printed = [one for one in yaml.safe_load_all(capsys.readouterr().out) if one]
    kinds = sorted(one["kind"] for one in printed)
    assert kinds == sorted(
        ["Secret"] * 3
        + ["Service", "NetworkPolicy", "ClusterRole", "ClusterRoleBinding", "ConfigMap"]
        + ["Namespace", "Deployment"]
    )


def test_a_driver_that_no_worker_reaches_is_told(monkeypatch, capsys):
    world = started(monkeypatch)
    monkeypatch.setattr(adoptcentral, "is_served", lambda *_: False)
    assert world.run("adopt", "--wait=3s") == 1
    assert "no worker reached it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "expected"),
    [("ok", True), ("not served", False), ("disconnected", False), (None, False), ("!", None)],
)
def test_whether_a_worker_serves_is_asked_in_a_pod(tmp_path, monkeypatch, state, expected):
    pod = {
        "metadata": {"name": "w", "namespace": "csi-fleet", "labels": {}},
        "spec": {"containers": [{"name": "worker", "env": [{"name": "CSI_FLEET_REDIS_URL"}]}]},
        "status": {"phase": "Running"},
    }
    drivers = {DRIVER: {"state": state}} if state else {}
    answer = "Error from server" if state == "!" else json.dumps({"drivers": drivers})
    program = tmp_path / "kubectl"
    program.write_text(
        f"#!/bin/sh\ncase \"$*\" in *exec*) echo '{answer}';; "
        f"*) echo '{json.dumps({'items': [pod]})}';; esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("KUBECTL", str(program))
    tools = Tools(parse("adopt", [DRIVER], {}))
    assert adoptcentral.is_served(tools, CENTRAL, DRIVER) is expected
