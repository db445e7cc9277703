"""Several Go sidecars as one worker container: each controller keeps its sidecar's settings."""

from __future__ import annotations

import random

import pytest

from tests.support.recipes import recorded
from workers.cli.onecontainer import Installation, build
from workers.config.flags import Command, Kind
from workers.config.flagsets import flag_set
from workers.config.load import parse
from workers.controllers import catalogue

DRIVER = "ebs.csi.aws.com"
HERE = Installation(
    "csi-fleet",
    "reg/csi-fleet:1",
    "rediss://redis.csi-fleet.svc:6379/0?ssl_ca_certs=/run/csi-fleet-redis/ca/ca.crt",
    "csi-fleet-records",
)
PROGRAMS = ("csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter")
ENVIRON = {"NAMESPACE": "n", "POD_NAME": "p"}


def container(program, args=(), **more):
    mounts = [{"name": "socket", "mountPath": "/csi"}]
    found = {"name": program, "image": f"reg/{program}:v1", "args": list(args)}
    return found | {"volumeMounts": mounts} | more


def made(containers, pod_spec=None):
    pairs = [(catalogue.program(one["image"].split("/")[1][:-3]), one) for one in containers]
    return build(
        pairs, pod_spec or {}, driver=DRIVER, installation=HERE, secret="redis-password-worker"
    )


def merged_settings(result):
    assert result.problems == []
    assert result.container["args"][0] == "worker"
    return parse("worker", [*result.container["args"][1:], "--redis-url=redis://r"], ENVIRON)


def alone(program, args):
    name = catalogue.program(program).name
    words = [f"--controllers={name}", "--redis-url=redis://r", *args]
    return parse("worker", words, ENVIRON, program=program)


def assert_same(merged, program, args):
    single = alone(program, args)
    for spec in catalogue.choose(catalogue.program(program).name):
        assert merged.controllers[spec.name] == single.controllers[spec.name], spec.name
    assert merged.leader.namespace == single.leader.namespace


@pytest.mark.parametrize("driver", recorded())
def test_real_drivers_arguments_mean_the_same_in_one_container(driver):
    """Uses the arguments from the charts of EBS, Azure, NFS, GCE, host-path and Ceph."""
    given = {name: args for name, args in recorded()[driver].items() if name in PROGRAMS}
    merged = merged_settings(made([container(name, args) for name, args in given.items()]))
    assert set(merged.chosen) >= {catalogue.program(name).name for name in given}
    for name, args in given.items():
        assert_same(merged, name, args)


SAMPLES = {
    Kind.BOOL: ("true", "false"),
    Kind.DURATION: ("7s", "11s", "2m"),
    Kind.UINT: ("3", "17"),
    Kind.INT: ("3", "17"),
    Kind.FLOAT: ("2", "9.5"),
    Kind.STRING: ("one", "two"),
}
# Flags that are refused on purpose or depend on others.
NOT_DRAWN = {
    *("node-deployment", "http-endpoint", "metrics-address", "enable-capacity", "version"),
    *("metrics-path", "logging-format", "leader-election-lease-duration"),
    *("leader-election-renew-deadline", "leader-election-retry-period"),
    "attach-record-annotation",
}


def drawn(rng, program):
    """Return some of the sidecar's own flags, each in a random one of its valid spellings."""
    words = ["--csi-address=/csi/csi.sock"]
    specs = catalogue.choose(catalogue.program(program).name)
    names = sorted({flag.name for spec in specs for flag in spec.flags} - NOT_DRAWN)
    flags = flag_set(specs)
    for name in rng.sample(names, rng.randint(0, len(names))):
        flag = flags.find(name)
        if flag.kind not in SAMPLES or Command.WORKER not in flag.commands:
            continue
        value = rng.choice(SAMPLES[flag.kind])
        if flag.kind is Kind.BOOL:
            words.append(rng.choice([f"--{name}={value}", f"--{name}"]))
        elif rng.random() < 0.3:
            words += [f"--{name}", value]
        elif flags.takes_one_dash and rng.random() < 0.5:
            words.append(f"-{name}={value}")
        else:
            words.append(f"--{name}={value}")
    return words


@pytest.mark.parametrize("seed", range(30))
def test_any_own_flags_mean_the_same_in_one_container(seed):
    """Values that differ between sidecars reach the right controller, in any order."""
    rng = random.Random(seed)
    programs = rng.sample(PROGRAMS, rng.randint(1, 4))
    given = {program: drawn(rng, program) for program in programs}
    merged = merged_settings(made([container(name, args) for name, args in given.items()]))
    for name, args in given.items():
        assert_same(merged, name, args)


def test_one_process_has_the_rate_of_all_and_the_longest_times():
    first = [
        "--kube-api-qps=20",
        "-v=2",
        "--leader-election-lease-duration=30s",
        "--leader-election",
    ]
    second = ["-v=5", "--leader-election-lease-duration=137s", "--leader-election"]
    result = made([container("csi-provisioner", first), container("csi-attacher", second)])
    args = result.container["args"]
    assert {"--kube-api-qps=25", "--v=5", "--leader-election-lease-duration=137s"} <= set(args)
    assert result.elects == {"csi-provisioner", "csi-attacher"}


def test_a_sidecar_without_election_is_told_apart():
    result = made([container("csi-provisioner", ["--leader-election"]), container("csi-attacher")])
    assert "--leader-election" in result.container["args"]
    assert result.elects == {"csi-provisioner"}


def env(name, value=None, **source):
    return (
        {"name": name, "value": value} if value is not None else {"name": name, "valueFrom": source}
    )


FIELD = {"fieldRef": {"fieldPath": "status.podIP"}}


def test_plain_variables_are_written_out_and_others_stay_variables():
    args = [
        "--csi-address=$(ADDRESS)",
        "--http-endpoint=$(POD_IP):8090",
        "--volume-name-prefix=$(X)",
    ]
    one = container(
        "csi-provisioner", args, env=[env("ADDRESS", "/csi/$(S)"), env("POD_IP", **FIELD)]
    )
    result = made([one])
    words = result.container["args"]
    # The kubelet leaves an unknown variable as it is, even if another container defines it.
    assert {"--csi-address=/csi/$$(S)", "--http-endpoint=$(POD_IP):8090"} <= set(words)
    assert "--volume-name-prefix=$$(X)" in words
    assert env("POD_IP", **FIELD) in result.container["env"]


def test_sockets_are_compared_by_volume_and_not_by_path():
    """Each sidecar may mount the driver's folder at another path."""
    one = container("csi-provisioner", ["--csi-address=/csi/csi.sock"])
    two = container("csi-attacher", ["--csi-address=unix:///run/x/csi.sock"])
    two["volumeMounts"] = [{"name": "socket", "mountPath": "/run/x/"}]
    assert "--csi-address=/csi/csi.sock" in made([one, two]).container["args"]
    two["volumeMounts"] = [{"name": "other", "mountPath": "/run/x/"}]
    assert "different sockets" in "".join(made([one, two]).problems)


def pair(first, second):
    return [container("csi-provisioner", **first), container("csi-attacher", **second)]


ARGS = ["--csi-address=/csi/csi.sock"]
REFUSED = {
    "unknown flag": (pair({"args": ["--no-such"]}, {}), "no-such"),
    "value from a ConfigMap": (
        pair({"args": ["--timeout=$(T)"], "env": [env("T", configMapKeyRef={})]}, {}),
        "does not accept its arguments",
    ),
    "other namespace of Leases": (
        pair(
            {"args": ["--leader-election-namespace=a"]}, {"args": ["--leader-election-namespace=b"]}
        ),
        "--leader-election-namespace",
    ),
    "gate": (
        [
            container("csi-provisioner", ["--feature-gates=VolumeAttributesClass=false"]),
            container("csi-resizer", ["--feature-gates=VolumeAttributesClass=true"]),
        ],
        "VolumeAttributesClass",
    ),
    "variable": (
        pair({"env": [env("HTTP_PROXY", "a")]}, {"env": [env("HTTP_PROXY", "b")]}),
        "HTTP_PROXY",
    ),
    "envFrom": (pair({"envFrom": [{"secretRef": {"name": "s"}}]}, {}), "envFrom"),
    "mount": (
        pair({}, {"volumeMounts": [{"name": "other", "mountPath": "/csi"}]}),
        "different volumes at /csi",
    ),
    "node": (pair({"args": ["--node-deployment"]}, {}), "node by node"),
    "not root, no user": (pair({"securityContext": {"runAsNonRoot": True}}, {}), "runAsUser"),
    "word": (pair({"args": ["stray"]}, {}), "stray"),
    "ours": (pair({"args": ["--redis-url=redis://x"]}, {}), "--redis-url is not a flag"),
    "twice": (
        [container("csi-attacher"), container("csi-attacher", name="b")],
        "several containers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_one_container_is_refused(case):
    containers, word = REFUSED[case]
    problems = made(containers).problems
    assert word in " ".join(problems)
    # A problem, a cause and a remedy.
    assert all(one.count(". ") >= 1 or "only prints" in one for one in problems)


def test_the_variable_of_the_socket_may_differ():
    """ADDRESS is used only in the container's own arguments, where its value is written out."""
    one = container("csi-provisioner", ["--csi-address=$(A)"], env=[env("A", "/csi/csi.sock")])
    two = container("csi-attacher", ["--csi-address=$(A)"], env=[env("A", "/run/x/csi.sock")])
    two["volumeMounts"] = [{"name": "socket", "mountPath": "/run/x"}]
    result = made([one, two])
    assert result.problems == []
    assert "A" not in [entry["name"] for entry in result.container["env"]]


USERS = {
    "image's": ({}, {}, 0, 0o440),
    "pod's with group": ({"runAsUser": 1000, "fsGroup": 1000}, {}, 1000, 0o440),
    "pod's": ({"runAsUser": 1000}, {}, 1000, 0o444),
    "own": ({"runAsUser": 1000}, {"runAsUser": 0}, 0, 0o440),
}


@pytest.mark.parametrize("case", USERS)
def test_the_user_that_reached_the_socket_reaches_it_again(case):
    of_pod, of_container, user, mode = USERS[case]
    one = container("csi-provisioner", ARGS, securityContext=of_container)
    result = made([one], {"securityContext": of_pod})
    security = result.container["securityContext"]
    assert security.get("runAsUser", of_pod.get("runAsUser")) == user
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    (login,) = [one["secret"] for one in result.volumes if "secret" in one]
    assert login["defaultMode"] == mode


def test_endpoint_port_and_probe_come_from_one_sidecar_and_the_rest_is_told():
    probe = {"httpGet": {"path": "/healthz/leader-election", "port": "http"}}
    one = container("csi-provisioner", [*ARGS, "--http-endpoint=:22011"])
    one |= {"ports": [{"name": "http", "containerPort": 22011}], "livenessProbe": probe}
    two = container("csi-attacher", [*ARGS, "--http-endpoint=:22012"], livenessProbe=probe)
    result = made([one, two | {"lifecycle": {}}])
    assert result.container["ports"] == one["ports"]
    assert result.container["livenessProbe"] == probe
    told = " ".join(result.notes)
    assert ":22012 is no longer served" in told
    assert "probe of csi-attacher" in told
    assert "lifecycle is omitted" in told
