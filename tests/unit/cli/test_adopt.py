"""adopt and release: plans for many workloads, and runs that are interrupted at any request."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import random
import time
from datetime import UTC, datetime

import pytest
import yaml

from tests.support.memory_api import MemoryApi
from tests.support.shipped import Right, manifests, rights
from workers.cli import adopt, adoptplan
from workers.cli.adoptcentral import POLICIES, SERVICES
from workers.cli.adoptplan import RECORD, Choice
from workers.cli.kubectl import REDIS_CLIENT
from workers.cli.onecontainer import NAME
from workers.cli.tools import Tools
from workers.config.load import parse
from workers.controllers import catalogue
from workers.errors import ConfigError
from workers.kube import paths
from workers.kube.errors import ForbiddenError, ServerError

DRIVER = "ebs.csi.aws.com"
PROGRAMS = ("csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter")
INSTALLATION = adopt.Installation(
    "csi-fleet", "reg/csi-fleet:1", "redis://redis.csi-fleet.svc", "csi-fleet-records"
)
RESOURCES = {"Deployment": paths.DEPLOYMENTS, "StatefulSet": paths.STATEFUL_SETS}


class Drawn:
    """A workload drawn from a seed: its order, names, places, flags and owners vary."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.programs = rng.sample(PROGRAMS, rng.randint(1, 4))
        self.is_elected = rng.random() < 0.6
        self.kind = rng.choice(["Deployment", "Deployment", "StatefulSet"])
        self.replicas = rng.choice([1, 1, 2, 3]) if self.is_elected else 1
        lists = {"containers": [self.other("driver")], "initContainers": []}
        if rng.random() < 0.5:
            lists["containers"].append(self.other("liveness-probe"))
        if rng.random() < 0.3:
            lists["initContainers"].append(self.other("prepare"))
        for index, program in enumerate(self.programs):
            one = self.sidecar(program, index)
            where = lists["containers"]
            if rng.random() < 0.2:
                one["restartPolicy"] = "Always"
                where = lists["initContainers"]
            where.insert(rng.randint(0, len(where)), one)
        spec = {name: items for name, items in lists.items() if items}
        spec["volumes"] = [{"name": "socket", "emptyDir": {}}]
        if rng.random() < 0.5:
            spec["securityContext"] = {"runAsUser": 1000}
        self.labels = {"app": "x"} | (dict([REDIS_CLIENT]) if rng.random() < 0.2 else {})
        self.item = {
            "apiVersion": "apps/v1",
            "kind": self.kind,
            "metadata": {"name": "ebs", "namespace": "kube-system", "uid": "u"},
            "spec": {
                "replicas": self.replicas,
                "template": {"metadata": {"labels": dict(self.labels)}, "spec": spec},
            },
        }
        if self.kind == "Deployment":
            self.item["spec"]["strategy"] = rng.choice(
                [
                    {"type": "Recreate"},
                    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                ]
            )

    def other(self, name):
        return {"name": name, "image": f"reg/{name}:1"}

    def sidecar(self, program, index):
        """Return a sidecar that can be recognized by its image, its command or its name."""
        words = ["--csi-address=/csi/csi.sock", f"--timeout={self.rng.randint(5, 90)}s"]
        words += ["--leader-election"] if self.is_elected else []
        one = {"name": f"c{index}", "image": "reg/mirror:1", "args": words}
        one["volumeMounts"] = [{"name": "socket", "mountPath": "/csi"}]
        return one | self.rng.choice(
            [
                {"image": f"reg/sig-storage/{program}:v5@sha256:0"},
                {"command": [f"/{program}"]},
                {"name": program},
            ]
        )

    @property
    def choice(self):
        one = bool(self.rng.getrandbits(1))
        return Choice(DRIVER, one_replica=one, any_replica=not one)


def applied(item, patch):
    return item if patch is None else adoptplan._merged(item, patch)


def programs_in(item):
    return sorted(one.spec.program for one in adoptplan.movable(item))


def has_worker(item):
    return adoptplan._worker(item) is not None


SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_adopting_and_releasing_leaves_the_workload_as_it_was(seed):
    drawn = Drawn(seed)
    before = copy.deepcopy(drawn.item)
    plan = adoptplan.adopt(drawn.item, INSTALLATION, drawn.choice)
    assert not plan.is_refused, plan.findings
    adopted = applied(drawn.item, plan.patch)
    assert drawn.item == before, "nothing is changed in place"
    assert programs_in(adopted) == []
    assert [one["name"] for one in adopted["spec"]["template"]["spec"]["containers"]].count(
        NAME
    ) == 1
    others = [
        one for one in adopted["spec"]["template"]["spec"]["containers"] if one["name"] != NAME
    ]
    old = before["spec"]["template"]["spec"]["containers"]
    assert others == [one for one in old if one in others], "in their order"
    assert REDIS_CLIENT in adopted["spec"]["template"]["metadata"]["labels"].items()
    settled = applied(adopted, adoptplan.settle(adopted))
    if drawn.kind == "Deployment":
        assert settled["spec"]["strategy"] == before["spec"]["strategy"]
    again = adoptplan.adopt(settled, INSTALLATION, drawn.choice)
    assert again.patch is None
    assert again.is_moved
    released = applied(settled, adoptplan.release(settled, Choice(DRIVER)).patch)
    released = applied(released, adoptplan.settle(released))
    released["metadata"].pop("annotations")
    assert released == before


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_lease_old_pods_end_before_new_ones_start(seed):
    """Wherever the runs stop, the template changes with Recreate, and the strategy is restored."""
    drawn = Drawn(seed)
    plan = adoptplan.adopt(drawn.item, INSTALLATION, drawn.choice)
    adopted = applied(drawn.item, plan.patch)
    released = applied(adopted, adoptplan.release(adopted, Choice(DRIVER)).patch)
    adopted_again = applied(released, adoptplan.adopt(released, INSTALLATION, drawn.choice).patch)
    for one in (adopted, released, adopted_again):
        if drawn.kind == "Deployment" and not drawn.is_elected:
            assert one["spec"]["strategy"] == {"type": "Recreate"}
        settled = applied(one, adoptplan.settle(one))
        assert settled["spec"].get("strategy") == drawn.item["spec"].get("strategy")
    assert adoptplan.record_of(adopted_again)["removed"] == adoptplan.record_of(adopted)["removed"]


@pytest.mark.parametrize("seed", range(20))
def test_a_chart_that_puts_the_sidecars_back_is_adopted_again(seed):
    """`helm upgrade` adds the chart's containers next to those that the chart does not know."""
    drawn = Drawn(seed)
    adopted = applied(drawn.item, adoptplan.adopt(drawn.item, INSTALLATION, drawn.choice).patch)
    old = drawn.item["spec"]["template"]["spec"]
    pod = adopted["spec"]["template"]["spec"]
    for name in ("containers", "initContainers"):
        there = [one["name"] for one in pod.get(name) or ()]
        new = [one for one in old.get(name) or () if one["name"] not in there]
        if new:
            pod[name] = [*new, *(pod.get(name) or ())]
    again = adoptplan.adopt(adopted, INSTALLATION, drawn.choice)
    assert not again.is_refused, again.findings
    adopted = applied(adopted, again.patch)
    assert programs_in(adopted) == []
    released = applied(adopted, adoptplan.release(adopted, Choice(DRIVER)).patch)
    assert programs_in(released) == sorted(drawn.programs)
    assert released["spec"]["replicas"] == drawn.replicas
    volumes = released["spec"]["template"]["spec"]["volumes"]
    assert volumes == drawn.item["spec"]["template"]["spec"]["volumes"]


def simple(*, replicas=1, elected=True, **metadata):
    args = ["--csi-address=/csi/csi.sock", *(["--leader-election"] if elected else [])]
    containers = [
        {"name": name, "image": f"reg/{name}:1", "args": list(args)}
        for name in ("driver", "csi-provisioner", "csi-attacher")
    ]
    containers[0].pop("args")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "ebs", "namespace": "kube-system", **metadata},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers}},
        },
    }


def plan_of(item, **choice):
    return adoptplan.adopt(item, INSTALLATION, Choice(DRIVER, **choice))


def refusals(plan):
    return " ".join(one.text for one in plan.findings if one.state == "FAIL")


def changed(item, path, value):
    target = item
    *steps, last = path.split(".")
    for step in steps:
        target = target.setdefault(step, {})
    target[last] = value
    return item


REFUSED = {
    "DaemonSet": (changed(simple(), "kind", "DaemonSet"), "node by node"),
    "CloneSet": (changed(simple(), "kind", "CloneSet"), "container by container"),
    "paused": (changed(simple(), "spec.paused", value=True), "rollout resume"),
    "OnDelete": (
        changed(
            changed(simple(), "kind", "StatefulSet"), "spec.updateStrategy", {"type": "OnDelete"}
        ),
        "updateStrategy",
    ),
    "partition": (
        changed(
            changed(simple(), "kind", "StatefulSet"),
            "spec.updateStrategy",
            {"rollingUpdate": {"partition": 1}},
        ),
        "updateStrategy",
    ),
    "deleted": (changed(simple(), "metadata.deletionTimestamp", "now"), "being deleted"),
    "replicas": (simple(replicas=2), "--any-replica"),
    "replicas without Lease": (simple(replicas=2, elected=False), "kubectl scale"),
    "no sidecars": (
        changed(simple(), "spec.template.spec.containers", [{"name": "d", "image": "d"}]),
        "no Go sidecar",
    ),
    "other's record": (
        simple(annotations={RECORD: json.dumps({"driver": "other"})}),
        "adopted for other",
    ),
    "forged record": (simple(annotations={RECORD: "{"}), "is unreadable"),
    "volume": (
        changed(simple(), "spec.template.spec.volumes", [{"name": "csi-fleet-redis-login"}]),
        "volume csi-fleet-redis-login of its own",
    ),
    "operator": (
        simple(ownerReferences=[{"kind": "Driver", "name": "rbd", "controller": True}]),
        "the operator of Driver rbd",
    ),
    "Argo": (simple(annotations={"argocd.argoproj.io/tracking-id": "ebs:x"}), "Argo CD"),
    "Flux": (simple(labels={"kustomize.toolkit.fluxcd.io/name": "infra"}), "Flux"),
    "EKS": (simple(managedFields=[{"manager": "eks"}]), "managed add-on of EKS"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_moved_is_refused_with_reason_and_remedy(case):
    item, word = REFUSED[case]
    plan = plan_of(item)
    assert word in refusals(plan)
    assert plan.is_refused


@pytest.mark.parametrize("case", ["operator", "Argo", "Flux", "EKS"])
def test_an_owner_that_undoes_at_once_can_be_overruled_and_gets_the_patch(case):
    item, word = REFUSED[case]
    plan = plan_of(item, force=True)
    assert not plan.is_refused
    assert word in " ".join(one.text for one in plan.findings if one.check == "owner")
    (patch,) = yaml.safe_load(plan.overlay)["patches"]
    containers = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["containers"]
    deleted = [one["name"] for one in containers if one.get("$patch") == "delete"]
    assert deleted == ["csi-provisioner", "csi-attacher"]
    assert containers[-1]["name"] == NAME


def test_helm_and_kubectl_undo_only_when_they_are_used_again():
    item = simple(annotations={"meta.helm.sh/release-name": "ebs"})
    plan = plan_of(item)
    assert not plan.is_refused
    (told,) = [one.text for one in plan.findings if one.check == "owner"]
    assert "Helm release ebs" in told
    assert "--post-renderer" in told


def test_the_image_follows_the_installation():
    item = applied(simple(), plan_of(simple()).patch)
    newer = adopt.replace(INSTALLATION, image="reg/csi-fleet:2")
    plan = adoptplan.adopt(item, newer, Choice(DRIVER))
    assert adoptplan._worker(applied(item, plan.patch))["image"] == "reg/csi-fleet:2"


def test_nothing_to_release_without_a_record():
    assert adoptplan.release(simple(), Choice(DRIVER)).is_moved
    item = applied(simple(), plan_of(simple()).patch)
    del item["metadata"]["annotations"]
    assert "no record" in refusals(adoptplan.release(item, Choice(DRIVER)))


def test_who_put_a_sidecar_back_by_hand_keeps_it():
    item = applied(simple(), plan_of(simple()).patch)
    mine = {"name": "csi-attacher", "image": "reg/csi-attacher:2"}
    item["spec"]["template"]["spec"]["containers"].append(mine)
    released = applied(item, adoptplan.release(item, Choice(DRIVER)).patch)
    containers = released["spec"]["template"]["spec"]["containers"]
    assert sorted(one["name"] for one in containers) == [
        "csi-attacher",
        "csi-provisioner",
        "driver",
    ]
    assert mine in containers


# Runs of the commands.


class Killed(Exception):  # noqa: N818 - what happens to the command
    """The command is killed here."""


class World:
    """An API server with a Deployment controller: pods and Leases follow the pod template."""

    def __init__(self, item=None, *, elected=True):
        self.api = MemoryApi()
        self.elected, self.kills_at, self.count, self.denied = elected, None, 0, set()
        self.seconds = 0.0
        self.shipped = set()  # if not empty, the permissions of the accounts
        add = self.api.add
        add(paths.NAMESPACES, {"metadata": {"name": "kube-system"}})
        part = {"app.kubernetes.io/part-of": "csi-fleet"}
        add(paths.NAMESPACES, {"metadata": {"name": "csi-fleet-records", "labels": part}})
        watcher = {
            "name": "watcher",
            "image": "reg/csi-fleet:1",
            "env": [
                {
                    "name": "CSI_FLEET_REDIS_URL",
                    "value": "rediss://redis:6379/0?ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt",
                }
            ],
        }
        metadata = {"name": "watcher", "namespace": "csi-fleet"}
        spec = {"template": {"spec": {"containers": [watcher]}}}
        status = {"availableReplicas": 1}
        add(paths.DEPLOYMENTS, {"metadata": metadata, "spec": spec, "status": status})
        place = {"namespace": "kube-system"}
        add(paths.SECRETS, {"metadata": {"name": "redis-password-worker", **place}})
        add(paths.CONFIG_MAPS, {"metadata": {"name": "redis-ca", **place}})
        self.resource = RESOURCES[(item or {}).get("kind", "Deployment")]
        add(self.resource, item or simple(elected=elected))
        replica_set = {"name": "ebs-1", **place}
        replica_set["ownerReferences"] = [{"kind": "Deployment", "name": "ebs", "controller": True}]
        add(paths.REPLICA_SETS, {"metadata": replica_set, "spec": {}})
        self.settle()
        real = self.api._reach

        def reach(verb, path, body=None):
            self.count += 1
            if self.kills_at is not None and self.count >= self.kills_at:
                raise Killed
            real(verb, path, body)
            self.check()

        self.api._reach = reach
        patch = self.api.patch

        def replace_pods(path, body, content_type):
            """Patch; a new template also removes the Leases, as no pod holds them meanwhile."""
            done = patch(path, body, content_type)
            if "template" in body.get("spec", {}):
                for one in [place for place in self.api.objects if "/leases/" in place]:
                    del self.api.objects[one]
            return done

        self.api.patch = replace_pods
        create = self.api.create

        def review(path, body):
            if "subjectaccessreviews" not in path:
                return create(path, body)
            self.api._reach("create", path)
            asked = body["spec"]["resourceAttributes"]
            right = asked["verb"], asked["resource"]
            if self.shipped:
                return {"status": {"allowed": self.is_shipped(body["spec"]["user"], asked)}}
            is_denied = right in self.denied or (body["spec"]["user"], *right) in self.denied
            return {"status": {"allowed": not is_denied}}

        self.api.create = review

    @property
    def workload(self):
        return {**self.api.of(self.resource, "ebs", "kube-system"), "kind": self.resource.kind}

    def is_shipped(self, user, asked):
        """Return True if the chart allows it; a driver's account has the worker's permissions."""
        account = "watcher" if user.endswith(":csi-fleet:watcher") else "worker"
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        right = asked.get("group", ""), resource, asked["verb"]
        places = {"", asked.get("namespace", "")}
        return asked["verb"] == "serve" or any(
            Right(account, place, *right) in self.shipped for place in places
        )

    def check(self):
        """Check that the next pods have either the sidecars or the worker at every moment."""
        assert bool(programs_in(self.workload)) != has_worker(self.workload)

    def settle(self):
        """Do the work of the Deployment controller and the kubelet."""
        item = self.workload
        wanted = item["spec"]["replicas"]
        status = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), wanted)
        status |= {"observedGeneration": 1, "spec": item["spec"]["template"]}
        item["metadata"]["generation"] = 1
        self.api.add(self.resource, {**item, "status": status})
        pod = "ebs-ours" if has_worker(item) else "ebs-go"
        owner = [{"kind": "ReplicaSet", "name": "ebs-1", "controller": True}]
        metadata = {"name": pod, "namespace": "kube-system", "ownerReferences": owner}
        self.api.add(paths.PODS, {"metadata": metadata, "spec": item["spec"]["template"]["spec"]})
        for program in ("csi-provisioner", "csi-attacher") if self.elected else ():
            name = catalogue.program(program).lease_name(DRIVER)
            holder = f"{pod}_csi-fleet-x" if has_worker(item) else pod
            spec = {
                "holderIdentity": holder,
                "renewTime": datetime.fromtimestamp(time.time(), UTC).isoformat(),
                "leaseDurationSeconds": 1000,
            }
            metadata = {"name": name, "namespace": "kube-system"}
            self.api.add(paths.LEASES, {"metadata": metadata, "spec": spec})

    def sleep(self, seconds):
        self.seconds += seconds
        self.settle()

    def run(self, command, *words, sleep=None):
        settings = parse(command, [DRIVER, *words], {})
        tools = Tools(settings)
        tools.kube = self.api.kube
        tool = settings.tool
        choice = Choice(DRIVER, tool.one_replica, tool.any_replica, tool.force, tool.secret)
        named = (settings.arguments[1:] or ("",))[0]
        clock = lambda: self.seconds  # noqa: E731
        move = adopt.Move(tools, choice, named, sleep=sleep or self.sleep, clock=clock)
        return move.adopt() if command == "adopt" else move.release()


def outcome(world):
    item = world.workload
    return programs_in(item), has_worker(item), item["spec"]["strategy"]["type"]


def test_a_driver_is_found_by_its_leases_adopted_and_released(capsys):
    world = World()
    before = world.workload["spec"]
    assert world.run("adopt") == 0
    assert outcome(world) == ([], True, "RollingUpdate")
    env = {one["name"]: one.get("value") for one in adoptplan._worker(world.workload)["env"]}
    assert env["CSI_FLEET_REDIS_URL"].startswith("rediss://redis.csi-fleet.svc:6379/0?ssl_ca")
    assert env["CSI_FLEET_REDIS_USERNAME"] == f"worker.{DRIVER}"
    namespace = world.api.of(paths.NAMESPACES, "kube-system")
    assert namespace["metadata"]["labels"] == {"csi-fleet.io/drivers": "true"}
    assert world.run("adopt") == 0, "once more is no change"
    assert world.run("release") == 0
    assert world.workload["spec"] == before
    assert world.run("release") == 0
    assert "is released" in capsys.readouterr().out


@pytest.mark.parametrize("elected", [True, False])
@pytest.mark.parametrize("command", ["adopt", "release"])
def test_a_command_that_dies_at_any_request_is_repeated_or_undone(command, elected):
    """The next pods always have either sidecars or worker; the original strategy is restored."""
    where = [] if elected else ["kube-system/ebs"]
    other = {"adopt": "release", "release": "adopt"}
    ends = {"adopt": ([], True, "RollingUpdate")}
    ends["release"] = (["csi-attacher", "csi-provisioner"], False, "RollingUpdate")
    total = 0
    for dies_at in itertools.count(1):
        reached = set()
        for then in ("adopt", "release"):
            world = World(elected=elected)
            if command == "release":
                world.run("adopt", *where)
            world.count, world.kills_at = 0, dies_at
            try:
                world.run(command, *where)
                reached.add("ended")
            except Killed:
                reached.add("killed")
            world.kills_at = None
            assert world.run(then, *where) == 0, f"{other[then]} was cut off at {dies_at}"
            assert outcome(world) == ends[then]
            if then == "release":
                assert RECORD not in (world.workload["metadata"].get("annotations") or {})
        total += 1
        if reached == {"ended"}:
            break
    assert total > 5


def test_somebody_who_writes_in_between_is_respected():
    world = World()
    world.api.before(
        "patch",
        "deployments/ebs",
        lambda: world.api.change(
            world.resource,
            "ebs",
            {"spec": {"template": {"metadata": {"labels": {"new": "1"}}}}},
            "kube-system",
        ),
    )
    assert world.run("adopt") == 0
    assert world.workload["spec"]["template"]["metadata"]["labels"]["new"] == "1"


def test_a_change_in_between_may_forbid_it():
    world = World()
    change = {"spec": {"replicas": 3}}
    world.api.before(
        "patch",
        "deployments/ebs",
        lambda: world.api.change(world.resource, "ebs", change, "kube-system"),
    )
    with pytest.raises(ConfigError, match="changed by somebody else"):
        world.run("adopt")
    assert programs_in(world.workload)


MISSING = {
    "Secret": lambda world: world.api.drop(paths.SECRETS, "redis-password-worker", "kube-system"),
    "ConfigMap": lambda world: world.api.drop(paths.CONFIG_MAPS, "redis-ca", "kube-system"),
    "records": lambda world: world.denied.add(("create", "configmaps")),
    "rights": lambda world: world.denied.add(("list", "persistentvolumes")),
}


@pytest.mark.parametrize("case", MISSING)
def test_nothing_is_changed_while_the_worker_could_not_work(case, capsys):
    """The message names the values that add what is missing."""
    world = World()
    MISSING[case](world)
    assert world.run("adopt") == 1
    assert not has_worker(world.workload)
    printed = capsys.readouterr().out
    assert "FAIL" in printed
    assert "serviceAccount: default" in printed or case == "rights"
    assert "labels" not in world.api.of(paths.NAMESPACES, "kube-system")["metadata"]


WATCHER = "system:serviceaccount:csi-fleet:watcher"


def test_what_the_watcher_may_not_follow_is_named_with_the_rule(capsys):
    """The driver's own account may be allowed to list it, which does not help the watcher."""
    world = World()
    world.denied |= {(WATCHER, verb, "volumeattachments") for verb in ("list", "watch")}
    assert world.run("adopt") == 1
    printed = capsys.readouterr().out
    assert not has_worker(world.workload)
    said = f"# FAIL: {WATCHER} is not allowed to list/watch volumeattachments, so it would not"
    assert said in printed
    assert "Add `attacher` to `controllers`" in printed
    lines = [one.removeprefix("# ") for one in printed.splitlines()]
    rule = yaml.safe_load("\n".join(lines[lines.index("- apiGroups:") :][:7]))
    assert rule == [
        {
            "apiGroups": ["storage.k8s.io"],
            "resources": ["volumeattachments"],
            "verbs": ["list", "watch"],
        }
    ]


def test_what_only_some_drivers_need_of_the_watcher_is_a_warning(capsys):
    world = World()
    world.denied |= {(WATCHER, "watch", "nodes")}
    assert world.run("adopt") == 0
    assert f"warn: {WATCHER} is not allowed to watch nodes, which" in capsys.readouterr().out


def test_a_second_driver_of_the_namespace_gets_its_own_login(capsys):
    world = World()
    for name, user in (("redis-password-worker", "worker.other"), ("second", f"worker.{DRIVER}")):
        data = {key: base64.b64encode(user.encode()).decode() for key in ("username", "password")}
        metadata = {"name": name, "namespace": "kube-system"}
        world.api.add(paths.SECRETS, {"metadata": metadata, "data": data | {"records-key": "eA=="}})
    assert world.run("adopt") == 0
    sources = [one.get("secret") for one in world.workload["spec"]["template"]["spec"]["volumes"]]
    assert {"secretName": "second"}.items() <= next(one for one in sources if one).items()
    world.run("release")
    world.api.drop(paths.SECRETS, "second", "kube-system")
    assert world.run("adopt") == 1
    assert "the Redis user worker.other, not of" in capsys.readouterr().out


def test_the_shipped_rights_are_enough(capsys):
    world = World()
    world.shipped = rights(manifests("controller-attacher"))
    assert world.run("adopt") == 0
    printed = capsys.readouterr().out
    assert "warn" not in printed
    world.shipped = {one for one in world.shipped if one.resource != "configmaps"}
    assert world.run("release") == 0
    assert world.run("adopt") == 1
    assert "is not allowed to get ConfigMaps in csi-fleet-records" in capsys.readouterr().out


def test_a_dry_run_prints_every_object_and_changes_none(capsys):
    world = World(simple(annotations={"argocd.argoproj.io/tracking-id": "x"}))
    before = copy.deepcopy(world.api.objects)
    assert world.run("adopt", "--dry-run", "--force") == 0
    assert world.api.objects == before
    printed = capsys.readouterr().out
    namespace, workload = yaml.safe_load_all(printed)
    assert namespace["kind"] == "Namespace"
    assert workload["spec"]["template"]["spec"]["containers"][1]["name"] == NAME
    assert json.loads(workload["metadata"]["annotations"][RECORD])["driver"] == DRIVER
    assert "# patches:" in printed


def test_on_the_hosts_network_the_policy_that_admits_it_is_printed(capsys):
    item = simple()
    host = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    item["spec"]["template"]["spec"] |= host
    world = World(item)
    selector = {"app.kubernetes.io/name": "redis"}
    metadata = {"name": "redis", "namespace": "csi-fleet"}
    world.api.add(SERVICES, {"metadata": metadata, "spec": {"selector": selector}})
    spec = {"podSelector": {"matchLabels": selector}, "ingress": [{"from": [{"podSelector": {}}]}]}
    world.api.add(POLICIES, {"metadata": metadata, "spec": spec})
    status = {"addresses": [{"type": "InternalIP", "address": "10.0.0.5"}]}
    world.api.add(paths.NODES, {"metadata": {"name": "n"}, "status": status})
    assert world.run("adopt") == 1
    assert not has_worker(world.workload)
    [policy] = yaml.safe_load_all(capsys.readouterr().out)
    world.api.add(POLICIES, policy)
    assert world.run("adopt") == 0


def test_pods_that_do_not_come_end_the_wait_with_what_to_do(capsys):
    world = World()

    def stuck(seconds):
        world.seconds += seconds
        status = {"status": {"updatedReplicas": 0}}
        world.api.change(world.resource, "ebs", status, "kube-system")

    world.api.before("patch", "deployments/ebs", lambda: None)
    item = world.workload
    item["metadata"]["generation"] = 2
    world.api.add(world.resource, item)
    assert world.run("adopt", "--wait=10s", sleep=stuck) == 1
    assert f"csi-fleet release {DRIVER}" in capsys.readouterr().out


def test_a_worker_that_gets_no_lease_is_told(capsys):
    world = World()
    assert (
        world.run(
            "adopt", "--wait=3s", sleep=lambda s: setattr(world, "seconds", world.seconds + s)
        )
        == 1
    )
    assert "did not get the Leases" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere/ebs"], "no workload"),
        (["kube-system/pod/ebs"], "does not name a workload"),
    ],
)
def test_a_wrong_name_is_told(words, says):
    with pytest.raises(ConfigError, match=says):
        World().run("adopt", *words)


def test_a_lease_of_another_namespace_makes_the_choice_the_users():
    """A tenant can write a Lease in its own namespace."""
    world = World()
    spec = {"holderIdentity": "evil-1", "renewTime": datetime.now(UTC).isoformat()}
    spec["leaseDurationSeconds"] = 1000
    name = catalogue.program("csi-provisioner").lease_name(DRIVER)
    world.api.add(paths.LEASES, {"metadata": {"name": name, "namespace": "evil"}, "spec": spec})
    owner = [{"kind": "Deployment", "name": "evil", "controller": True}]
    metadata = {"name": "evil-1", "namespace": "evil", "ownerReferences": owner}
    pod = simple()["spec"]["template"]["spec"]
    world.api.add(paths.PODS, {"metadata": metadata, "spec": pod})
    evil = simple()
    evil["metadata"] |= {"name": "evil", "namespace": "evil"}
    world.api.add(paths.DEPLOYMENTS, evil)
    with pytest.raises(ConfigError, match=r"evil/evil, Deployment kube-system/ebs could all be"):
        world.run("adopt")


def test_a_watcher_in_a_namespace_without_the_label_is_nobodys():
    world = World()
    world.api.drop(paths.NAMESPACES, "csi-fleet-records")
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "csi-fleet-records"}})
    with pytest.raises(ConfigError, match="not installed"):
        world.run("adopt")


def test_without_a_watcher_nothing_is_changed():
    world = World()
    status = {"status": {"availableReplicas": 0}}
    world.api.change(paths.DEPLOYMENTS, "watcher", status, "csi-fleet")
    with pytest.raises(ConfigError, match="No csi-fleet watcher"):
        world.run("adopt")
    assert programs_in(world.workload)


def test_a_pod_with_the_hosts_network_is_found_by_its_node():
    world = World()
    pod = world.api.of(paths.PODS, "ebs-go", "kube-system")
    pod["spec"] |= {"hostNetwork": True, "nodeName": "node-1.example.org"}
    world.api.add(paths.PODS, pod)
    for program in ("csi-provisioner", "csi-attacher"):
        name = catalogue.program(program).lease_name(DRIVER)
        world.api.change(paths.LEASES, name, {"spec": {"holderIdentity": "node-1"}}, "kube-system")
    assert world.run("adopt") == 0


def test_who_may_not_list_workloads_is_served_by_the_leases():
    world = World()
    world.api.fail("get", "/apis/apps/v1/deployments", ForbiddenError(403, "Forbidden", "no"))
    world.api.fail("get", "/apis/apps/v1/statefulsets", ForbiddenError(403, "Forbidden", "no"))
    assert world.run("adopt") == 0


def test_an_api_server_that_fails_is_one_line(monkeypatch):
    world = World()
    world.api.fail("get", "namespaces", ServerError(503, "Unavailable", "away"))
    tools = Tools(parse("adopt", [DRIVER, "kube-system/ebs"], {}))
    tools.kube = world.api.kube
    with pytest.raises(ConfigError, match="Nothing is left half done"):
        adopt.run(tools)


@pytest.mark.parametrize(
    "words",
    [[], [DRIVER, "ebs"], [DRIVER, "a/b", "c"], [DRIVER, "--as=central"],
     [DRIVER, "--one-replica", "--any-replica"]],
)  # fmt: skip
def test_mistakes_in_the_command(words):
    with pytest.raises(ConfigError):
        adopt.run(Tools(parse("adopt", words, {})))
