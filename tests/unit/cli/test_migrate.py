"""migrate check: what prevents moving a driver to csi-fleet (issue 22)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import migrate
from workers.config.load import parse
from workers.errors import ConfigError
from workers.kube import paths
from workers.kube.errors import ForbiddenError

DRIVER = "ebs.csi.aws.com"
PROVISIONER_LEASE, ATTACHER_LEASE = "ebs-csi-aws-com", "external-attacher-leader-ebs-csi-aws-com"


class World:
    """A driver's pod with two Go sidecars that hold their Leases."""

    def __init__(self):
        self.api = MemoryApi()
        self.api.add(migrate.CSI_DRIVERS, {"metadata": {"name": DRIVER}})
        self.records, self.redis_url, self.stats = {}, "redis://redis", {}
        self.denied = set()
        self.pod = {
            "metadata": {"name": "ebs-1", "namespace": "kube-system"},
            "spec": {
                "serviceAccountName": "ebs",
                "containers": [
                    {"name": "plugin", "image": "ebs:1"},
                    {
                        "name": "csi-provisioner",
                        "image": "registry/sig-storage/csi-provisioner:v5.2.0",
                        "args": ["--csi-address=$(ADDRESS)", "--v=2", "--extra-create-metadata"],
                        "env": [{"name": "ADDRESS", "value": "/csi/csi.sock"}],
                    },
                    {"name": "b", "image": "x", "command": ["/csi-attacher", "--timeout=6m"]},
                ],
            },
        }
        create = self.api.create

        def review(path, body):
            if "subjectaccessreviews" not in path:
                return create(path, body)
            asked = body["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}

        self.api.create = review

    def lease(self, name, holder="ebs-1", age=0.0, namespace="kube-system"):
        renewed = datetime.fromtimestamp(time.time() - age, UTC).isoformat()
        spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
        metadata = {"name": name, "namespace": namespace}
        self.api.add(paths.LEASES, {"metadata": metadata, "spec": spec})

    def check(self, *words, driver=DRIVER):
        settings = parse(
            "migrate", [f"--driver={driver}", *words], {"CSI_FLEET_REDIS_URL": self.redis_url}
        )
        tools = SimpleNamespace(
            settings=settings,
            kube=self.api.kube,
            registry=SimpleNamespace(alive=lambda: self.records),
            redis=self,
            is_json=True,
        )
        if "pods" not in "".join(self.api.objects):
            self.api.add(paths.PODS, self.pod)
        pod = words[1] if words[1:] else ""
        return [(one.check, one.state, one.text) for one in migrate.findings(tools, driver, pod)]


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(migrate, "read_stats", lambda found: found.stats)
    return World()


def states(found, check):
    return [state for name, state, _ in found if name == check]


def texts(found, check):
    return " ".join(text for name, _, text in found if name == check)


def test_sidecars_are_found_by_their_leases(world):
    """They are recognized by command, image or name, and their variables are expanded."""
    world.lease(PROVISIONER_LEASE)
    world.lease(ATTACHER_LEASE, holder="ebs-1_0f3a")
    found = world.check("check")
    assert texts(found, "driver") == f"CSIDriver {DRIVER} exists"
    assert states(found, "csi-provisioner") == states(found, "csi-attacher") == ["ok"]
    assert "accepts all of its 3 arguments unchanged" in texts(found, "csi-provisioner")
    assert states(found, "both") == ["ok"]


def test_a_driver_that_has_moved_is_said_to_be_ours(world):
    world.lease(PROVISIONER_LEASE, holder="ebs-1_csi-fleet-0f3a")
    found = world.check("check")
    assert "csi-provisioner: csi-fleet in kube-system/ebs-1 is active" in texts(found, "lease")
    assert states(found, "sidecars") == []


def test_a_pod_is_named_where_no_lease_is_held(world):
    """This finds a single replica without --leader-election."""
    world.lease(PROVISIONER_LEASE, age=60)
    assert states(world.check("check"), "sidecars") == ["FAIL"], "nothing was compared"
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner"]}}
    assert states(world.check("check"), "sidecars") == ["warn"], "it has moved"
    world.records = {}
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "csi-provisioner") == states(found, "csi-attacher") == ["ok"]


def test_an_argument_that_we_refuse_or_ignore(world):
    """csi-fleet's own command line parser decides."""
    world.pod["spec"]["containers"][1]["args"] = ["--no-such-flag"]
    world.pod["spec"]["containers"][2]["command"] = ["/csi-attacher", "--vmodule=a=1"]
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "csi-provisioner") == ["FAIL"]
    assert "no-such-flag" in texts(found, "csi-provisioner")
    assert states(found, "csi-attacher") == ["warn"]
    assert "vmodule" in texts(found, "csi-attacher")


def test_what_the_pod_lacks(world):
    """Missing label, volumes, variables and socket group are listed; a complete pod is ok."""
    found = texts(world.check("check", "kube-system/ebs-1"), "pod")
    needed = ("csi-fleet.io/redis-client", "redis-login", "CSI_FLEET_REDIS_URL", "fsGroup")
    for word in (*needed, "CSI_FLEET_RECORDS_KEY_FILE", "--namespace=csi-fleet-records"):
        assert word in found
    other = World()
    other.pod["metadata"]["labels"] = {"csi-fleet.io/redis-client": "true"}
    other.pod["spec"] |= {
        "volumes": [{"name": "redis-ca"}, {"name": "redis-login"}],
        "securityContext": {"fsGroup": 10001},
    }
    container = other.pod["spec"]["containers"][1]
    names = ("CSI_FLEET_REDIS_URL", "CSI_FLEET_RECORDS_KEY_FILE")
    container["env"] += [{"name": name, "value": "r"} for name in names]
    container["args"] = [*container.get("args", ()), "--namespace=csi-fleet-records"]
    assert states(other.check("check", "kube-system/ebs-1"), "pod") == ["ok"]


@pytest.mark.parametrize(
    ("labels", "is_told"), [({}, True), ({"csi-fleet.io/drivers": "true"}, False)]
)
def test_the_namespace_must_be_let_in_to_redis(world, labels, is_told):
    """The NetworkPolicy of Redis requires both labels (OPS-6)."""
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "kube-system", "labels": labels}})
    found = texts(world.check("check", "kube-system/ebs-1"), "pod")
    assert ("label csi-fleet.io/drivers=true of its namespace" in found) is is_told


def test_rights_of_the_pods_account(world):
    """Missing permissions are named for each controller that the pod would run."""
    world.denied = {("patch", "volumeattachments")}
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "rights of csi-provisioner") == ["ok"]
    assert texts(found, "rights of csi-attacher") == (
        "system:serviceaccount:kube-system:ebs is not allowed to patch volumeattachments, "
        "patch volumeattachments/status"
    )


def test_rights_of_the_watcher(world):
    """The check uses the watcher of the only installation."""
    assert states(world.check("check", "kube-system/ebs-1"), "watcher") == ["warn"]
    part = {"app.kubernetes.io/part-of": "csi-fleet"}
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "csi-fleet-records", "labels": part}})
    assert states(world.check("check", "kube-system/ebs-1"), "watcher") == ["ok"]
    world.denied = {("list", "persistentvolumes")}
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "watcher") == ["FAIL", "FAIL"]
    assert "system:serviceaccount:csi-fleet:watcher is not allowed to list" in texts(
        found, "watcher"
    )
    world.api.add(paths.NAMESPACES, {"metadata": {"name": "two-records", "labels": part}})
    assert "--namespace" in texts(world.check("check", "kube-system/ebs-1"), "watcher")


def test_both_at_once(world):
    """A Go sidecar and csi-fleet must never do the same work at once."""
    world.lease(PROVISIONER_LEASE)
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner", "capacity"]}}
    found = world.check("check")
    assert states(found, "both") == ["FAIL"]
    assert "kube-system/ebs-1 holds the Lease" in texts(found, "both")
    world.lease(PROVISIONER_LEASE, holder="w-1_csi-fleet-1")
    found = world.check("check")
    assert states(found, "both") == ["warn"]
    assert "A Go sidecar without --leader-election is found only in the pod" in texts(found, "both")


@pytest.mark.parametrize(
    ("lane", "kind", "state"),
    [
        ("claims|d", "lease", "ok"),
        ("volumes|d", "lease", "ok"),
        ("claims|d", "operator", "FAIL"),
        ("claims|other", "lease", "FAIL"),
        ("attachments|d", "lease", "FAIL"),
    ],
)
def test_a_standby_is_no_second_one(world, lane, kind, state):
    """As in docs/migration.md: with --leader-election csi-fleet waits until the sidecar ends."""
    world.lease(PROVISIONER_LEASE)
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner", "capacity"]}}
    world.stats = {lane: SimpleNamespace(paused={kind: "held by ebs-1"})}
    found = world.check("check")
    assert [one for one in states(found, "both") if one == "FAIL"] == ["FAIL"] * (state == "FAIL")
    told = "waits until the Lease of csi-provisioner is free" in texts(found, "both")
    assert told == (state == "ok")


def test_leases_in_two_namespaces(world):
    """Neither waits for the other, although both have --leader-election."""
    world.lease(PROVISIONER_LEASE)
    world.lease(PROVISIONER_LEASE, holder="w-1_csi-fleet-1", namespace="csi-fleet")
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner"]}}
    found = world.check("check")
    assert states(found, "both") == ["FAIL"]
    assert "Start both with the same --leader-election-namespace" in texts(found, "both")


OURS = "registry/csi-fleet:1"


@pytest.mark.parametrize(
    ("change", "phase", "state"),
    [
        ({}, "Running", "FAIL"),
        ({"args": ["--leader-election=false"]}, "Running", "FAIL"),
        ({"args": ["--leader-election"]}, "Running", "ok"),
        ({"args": ["-leader-election=true"]}, "Running", "ok"),
        ({"image": OURS}, "Running", "ok"),
        ({"command": ["/opt/csi-fleet"]}, "Running", "ok"),
        ({"image": "mine/storage:1", "args": ["csi-provisioner", "-v=2"]}, "Running", "ok"),
        ({"image": "mine/storage:1", "args": ["worker", "--redis-url=r"]}, "Running", "ok"),
        ({"image": "mirror/csi-fleet/csi-provisioner:v5"}, "Running", "FAIL"),
        ({"env": [{"name": "CSI_FLEET_REDIS_URL", "value": "redis://r"}]}, "Running", "ok"),
        ({}, "Failed", "ok"),
    ],
)
def test_a_sidecar_without_a_lease_in_the_named_pod(world, change, phase, state):
    """A sidecar without a Lease must not be missed, because both would then create volumes."""
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner"]}}
    world.pod["spec"]["containers"][1] |= change
    world.pod["status"] = {"phase": phase}
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "both") == [state]
    if state == "FAIL":
        assert "ebs-1, container csi-provisioner has no --leader-election" in texts(found, "both")


@pytest.mark.parametrize(
    ("argument", "env", "state"),
    [
        ("--node-deployment", {}, "FAIL"),
        ("--node-deployment", {"NODE_NAME": {"value": "n1"}}, "ok"),
        ("--node-deployment", {"NODE_NAME": "spec.nodeName"}, "ok"),
        ("--enable-capacity", {"NAMESPACE": "metadata.namespace"}, "FAIL"),
        (
            "--enable-capacity",
            {"NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"},
            "ok",
        ),
    ],
)
def test_what_a_sidecar_reads_of_its_pod_is_known(world, argument, env, state):
    """Variables from pod fields are resolved, as node deployment and capacity need them."""
    container = world.pod["spec"]["containers"][1]
    world.pod["spec"]["nodeName"] = "n1"
    container["args"] = [argument]
    container["env"] = [
        {"name": name}
        | (
            source
            if isinstance(source, dict)
            else {"valueFrom": {"fieldRef": {"fieldPath": source}}}
        )
        for name, source in env.items()
    ]
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "csi-provisioner") == [state]


ELSEWHERE = {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}


@pytest.mark.parametrize(
    ("argument", "env", "state", "words"),
    [
        ("--timeout=$(T)", [{"name": "T", "value": "9s"}], "ok", "its 1 arguments"),
        ("--timeout=$(T)", [], "FAIL", "$(T)"),
        (
            "--timeout=$(T)",
            [{"name": "T", **ELSEWHERE}],
            "warn",
            "stored elsewhere: --timeout=$(T)",
        ),
        ("--timeout=$(T)", None, "warn", "stored elsewhere: --timeout=$(T)"),
        (
            "--timeout=$(U)",
            [{"name": "T", "value": "9"}, {"name": "U", "value": "$(T)s"}],
            "ok",
            "its 1 arguments",
        ),
        (
            "--timeout=$(U)",
            [{"name": "T", **ELSEWHERE}, {"name": "U", "value": "$(T)s"}],
            "warn",
            "stored elsewhere: --timeout=$(U)",
        ),
        ("--timeout=$$(T)", [{"name": "T", "value": "9s"}], "FAIL", "$(T)"),
        ("--prefix=$(T)", [{"name": "T", **ELSEWHERE}], "warn", "stored elsewhere"),
        ("--timeout=9s$(T)", [{"name": "T", "value": ""}], "ok", "its 1 arguments"),
        ("--timeout=9s$($(T)", [{"name": "T", "value": "x"}], "FAIL", "$($(T)"),
        ("--timeout $(T) -v 5", [{"name": "T", **ELSEWHERE}], "warn", "elsewhere: --timeout $(T)"),
        ("--timeout $(T) --no-such", [{"name": "T", **ELSEWHERE}], "warn", "unknown flag"),
        (
            "--http-endpoint=$(IP):8080",
            [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "ok",
            "its 1 arguments",
        ),
        ("--node-deployment", [{"name": "NODE_NAME", **ELSEWHERE}], "ok", "its 1 arguments"),
    ],
)
def test_variables_are_read_as_the_kubelet_reads_them(world, argument, env, state, words):
    """They expand in order, and `$$` means a dollar; ConfigMaps are not read. None: envFrom."""
    container = world.pod["spec"]["containers"][1]
    container |= {"args": argument.split(), "env": env or []}
    if env is None:
        container["envFrom"] = [{"configMapRef": {"name": "c"}}]
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "csi-provisioner") == [state]
    assert words in texts(found, "csi-provisioner")


@pytest.mark.parametrize(
    ("argument", "is_refused", "words"),
    [
        ("--leader-election=$(LE)", False, "stored elsewhere"),
        ("--leader-election", True, "is not known: see lease"),
    ],
)
def test_no_all_clear_without_knowing_who_elects(world, argument, is_refused, words):
    """Unknown facts must never pass the check that only one of the two works."""
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner"]}}
    container = world.pod["spec"]["containers"][1]
    container |= {"args": [argument], "env": [{"name": "LE", **ELSEWHERE}]}
    if is_refused:
        world.api.fail("get", "/leases", ForbiddenError(403, "Forbidden", "no"))
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "both") == ["FAIL"]
    assert words in texts(found, "both")


@pytest.mark.parametrize(("waiting", "state"), [(("d@n1", "d@n2"), "ok"), (("d@n1",), "FAIL")])
def test_all_nodes_stand_by_or_it_is_no_standby(world, waiting, state):
    """Node deployment has a Lease for each node's queue."""
    world.lease(PROVISIONER_LEASE)
    one = {"name": DRIVER, "controllers": ["provisioner"]}
    world.records = {"d@n1": one, "d@n2": one}
    world.stats = {f"claims|{name}": SimpleNamespace(paused={"lease": "held"}) for name in waiting}
    assert states(world.check("check"), "both")[0] == state


@pytest.mark.parametrize("what", ["csidrivers", "leases", "pods"])
def test_what_cannot_be_read_fails_and_ends_nothing(world, what):
    """Callers often have few permissions, and a check must not pass on data it could not read."""
    world.lease(PROVISIONER_LEASE)
    refusal = ForbiddenError(403, "Forbidden", f"{what} is forbidden")
    world.api.fail("get", f"/{what}", refusal)
    found = world.check("check", "kube-system/ebs-1")
    check = {"csidrivers": "driver", "leases": "lease", "pods": "pod"}[what]
    assert (states(found, check)[0], "not checked" in texts(found, check)) == ("FAIL", True)
    assert states(found, "both")


@pytest.mark.parametrize(("policy", "state"), [("Always", ["FAIL"]), (None, [])])
def test_a_sidecar_among_the_init_containers(world, policy, state):
    """A restartable init container runs next to the others and does the same work."""
    world.records = {"d": {"name": DRIVER, "controllers": ["provisioner"]}}
    spec = world.pod["spec"]
    sidecar = spec["containers"].pop(1)
    spec["initContainers"] = [sidecar | ({"restartPolicy": policy} if policy else {})]
    found = world.check("check", "kube-system/ebs-1")
    assert [one for one in states(found, "both") if one == "FAIL"] == state


def test_a_named_pod_that_is_not_there_stands_in_the_way(world):
    world.lease(PROVISIONER_LEASE)
    found = world.check("check", "a/nopod")
    assert ("pod", "FAIL", "pod a/nopod not found") in found
    assert states(found, "sidecars") == []


def test_a_named_pod_without_a_sidecar_is_told(world):
    world.pod["spec"]["containers"] = world.pod["spec"]["containers"][:1]
    found = world.check("check", "kube-system/ebs-1")
    assert texts(found, "sidecars") == "pod kube-system/ebs-1 has no container of a Go sidecar"


def test_unknown_driver_is_said(world):
    """A driver needs no CSIDriver object, so a Lease with its name shows that the driver exists."""
    assert states(world.check("check", driver="other"), "driver") == ["FAIL"]
    world.lease("other")
    assert states(world.check("check", driver="other"), "driver") == ["warn"]


def test_what_is_missing_is_to_do_before_the_move_and_an_error_after_it(world):
    """Covers an account without permissions and a pod without the Redis certificate."""
    world.lease(PROVISIONER_LEASE)
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "pod") == ["warn"]
    assert set(states(found, "rights of csi-provisioner")) == {"ok"}
    world.denied = {("create", "persistentvolumes"), ("list", "csistoragecapacities")}
    found = world.check("check", "kube-system/ebs-1")
    assert states(found, "rights of csi-provisioner")[0] == "FAIL"
    world.pod["spec"]["containers"][1]["image"] = "registry/csi-fleet:1"
    world.pod["spec"]["containers"][1]["command"] = ["csi-fleet", "csi-provisioner"]
    world.api.add(paths.PODS, world.pod)
    assert states(world.check("check", "kube-system/ebs-1"), "pod") == ["FAIL"]


@pytest.mark.parametrize("words", [(), ("status",), ("check", "pod"), ("check", "a/b", "c")])
def test_words_that_are_wrong(words):
    """The error message shows the correct usage."""
    settings = parse("migrate", [f"--driver={DRIVER}", *words], {})
    with pytest.raises(ConfigError, match="migrate check --driver=NAME"):
        migrate.run(SimpleNamespace(settings=settings))
