"""kubectl csi-fleet: the pod, the container and the arguments that it chooses (OPS-3)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.kustomize import render
from workers.cli import kubectl, wholes
from workers.config.flags import TOOLS, Command, Kind
from workers.config.flagtable import FLAGS

K8S = Path(__file__).resolve().parents[3] / "k8s"

FAKE = """\
#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], "" if sys.stdin.isatty() else sys.stdin.read()]) + "\\n")
if "namespaces" in sys.argv:
    sys.stdout.write(open({pods!r} + ".namespaces").read())
elif "get" in sys.argv:
    sys.stdout.write(open({pods!r}).read())
elif "exec" in sys.argv:
    os.write(1, {output!r})
    os.write(2, {error!r})
    sys.exit({exits})
sys.exit({code})
"""


PART = {"app.kubernetes.io/part-of": "csi-fleet"}
LABELS = {
    "attic": {},
    "csi-fleet": {},
    "csi-fleet-records": PART,
    "ebs": {"csi-fleet.io/drivers": "true"},
}


def pod(name, *, namespace="csi-fleet", app="worker", phase="Running", ready=True, args=()):
    env = [{"name": "CSI_FLEET_REDIS_URL", "value": "rediss://redis"}]
    containers = [
        {"name": "driver", "args": ["--namespace=drivers-own"]},
        {"name": "ours", "env": env, "args": list(args)},
    ]
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": app}}
    states = [{"name": "driver", "ready": True}, {"name": "ours", "ready": ready}]
    return {
        "metadata": metadata,
        "spec": {"containers": containers},
        "status": {"phase": phase, "containerStatuses": states},
    }


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return a function that installs a kubectl that lists `pods` and logs its arguments."""
    log, pods = tmp_path / "log", tmp_path / "pods.json"

    def answer(*items, code=0, labels=LABELS, output=b"", error=b"", exits=0):
        pods.write_text(json.dumps({"items": list(items)}))
        named = [{"metadata": {"name": name, "labels": own}} for name, own in labels.items()]
        (tmp_path / "pods.json.namespaces").write_text(json.dumps({"items": named}))
        program = tmp_path / "kubectl"
        program.write_text(
            FAKE.format(
                python=sys.executable, log=str(log), pods=str(pods), code=code,
                output=output, error=error, exits=exits,
            )
        )  # fmt: skip
        program.chmod(0o755)
        monkeypatch.setenv("KUBECTL", str(program))
        return lambda: [json.loads(line) for line in log.read_text().splitlines()]

    return answer


def test_command_runs_in_the_workers_container(cluster):
    """It gets the namespace of the records that the container itself uses."""
    told = cluster(pod("w-1", args=["worker", "--namespace=csi-fleet-records"]))
    assert kubectl.main(["--context=prod", "doctor", "--driver=d", "-o", "json"]) == 0
    (asked, _), (namespaces, _), (run, _) = told()
    assert namespaces == ["--context=prod", "get", "namespaces", "-o", "json"]
    assert asked == [
        *("--context=prod", "get", "pods", "--selector=csi-fleet.io/redis-client=true"),
        *("--all-namespaces", "-o", "json"),
    ]
    assert run == [
        *("--context=prod", "exec", "--namespace=csi-fleet", "w-1", "--container=ours", "--"),
        *("csi-fleet", "doctor", "--namespace=csi-fleet-records", "--driver=d", "-o", "json"),
    ]


def test_commands_about_objects_are_not_told_where_the_records_are(cluster):
    """Their -n is the objects' namespace."""
    told = cluster(pod("w-1", args=["worker", "--namespace=csi-fleet-records"]))
    assert kubectl.main(["pending", "-n", "shop"]) == 0
    assert told()[-1][0][-4:] == ["csi-fleet", "pending", "-n", "shop"]


@pytest.mark.parametrize(
    ("items", "chosen"),
    [
        pytest.param([pod("f", app="flower"), pod("w", app="worker")], "w", id="a worker first"),
        pytest.param([pod("b", app="beat"), pod("w", app="watcher")], "w", id="else the watcher"),
        pytest.param([pod("a", ready=False), pod("b")], "b", id="a ready one"),
        pytest.param([pod("a", phase="Pending"), pod("b")], "b", id="a running one"),
        pytest.param([pod("d", namespace="ebs", app="ebs-controller")], "d", id="beside a driver"),
        pytest.param([pod("b"), pod("a")], "a", id="always the same one"),
    ],
)
def test_the_pod_that_knows_most(items, chosen):
    assert kubectl.choose(items, ["explain", "pvc", "a/b"]).pod == chosen


@pytest.mark.parametrize(
    ("items", "chosen"),
    [
        pytest.param(
            [
                pod("a", app="worker"),
                pod("d", namespace="ebs", app="ebs-controller"),
                pod("w", app="watcher"),
            ],
            "w",
            id="a watcher, though workers run beside drivers too",
        ),
        pytest.param([pod("a", app="worker")], "a", id="else a worker, which says what to do"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        *("pause --driver=d", "resume --driver=d", "drain --driver=d"),
        *("pending -n shop", "explain -o=json driver d", "explain class/fast", "explain NS shop"),
        *(
            "explain -o json driver d",
            "explain --output json -n shop class/fast",
            "explain -- ns a",
        ),
        *("explain -ojson driver d", "explain --redis-insecure -v 5 driver d"),
    ],
)
def test_a_watcher_writes_pauses_and_lists_claims(command, items, chosen):
    """Workers' accounts can do neither: an admission policy and RBAC prevent it."""
    assert kubectl.choose(items, command.split()).pod == chosen


@pytest.mark.parametrize("command", ["explain -n ns pvc a", "explain -o json pvc driver"])
def test_a_worker_explains_one_object_whatever_a_flags_value_is(command):
    items = [pod("a", app="worker"), pod("w", app="watcher")]
    assert kubectl.choose(items, command.split()).pod == "a"


def test_flags_without_a_value_are_those_of_explain():
    switches = {
        f"--{one.name}"
        for one in FLAGS.values()
        if Command.EXPLAIN in one.commands and one.kind is Kind.BOOL
    }
    assert set(kubectl.SWITCHES) == switches | {"-h", "--help"}


def test_words_for_wholes_are_those_of_explain():
    assert set(kubectl.WHOLES) == set(wholes._WORDS)


@pytest.mark.parametrize("words", ["explain pvc driver/data", "status", "failed"])
def test_other_commands_run_in_a_workers_pod(words):
    items = [pod("w", app="watcher"), pod("a", app="worker")]
    assert kubectl.choose(items, words.split()).pod == "a"


def test_file_of_the_laptop_goes_through_standard_input(cluster, tmp_path):
    """The file does not exist in the pod."""
    claim = tmp_path / "claim.yaml"
    claim.write_text("kind: PersistentVolumeClaim\n")
    for spelling in (["-f", str(claim)], [f"--filename={claim}"]):
        told = cluster(pod("w"))
        assert kubectl.main(["-n", "storage", "dry-run", *spelling]) == 0
        *_, (asked, _), (run, content) = told()
        assert "--namespace=storage" in asked
        assert content == "kind: PersistentVolumeClaim\n"
        assert "--stdin" in run
        assert "-" in run[-1]
        assert str(claim) not in " ".join(run)


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["statsu"], "unknown command statsu", 2),
        (["--watch", "status"], "unknown flag --watch", 2),
        (["-n"], "-n needs a value", 2),
        (["status"], "no running pod", 1),
    ],
)
def test_mistakes_are_one_line(cluster, capsys, arguments, text, code):
    """A usage error exits with code 2, as csi-fleet itself does."""
    cluster()
    assert kubectl.main(arguments) == code
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_refusal_of_the_api_server_is_shown(cluster, capsys):
    """The message suggests a smaller request."""
    cluster(code=1)
    assert kubectl.main(["status"]) == 1
    assert "-n NAMESPACE" in capsys.readouterr().err


def test_no_kubectl(monkeypatch, capsys):
    monkeypatch.setenv("KUBECTL", "/nonexistent/kubectl")
    assert kubectl.main(["status"]) == 1
    assert "cannot run /nonexistent/kubectl" in capsys.readouterr().err


def test_file_works_alone():
    """Users can copy it to a laptop without any other file of csi-fleet."""
    found = subprocess.run(
        [sys.executable, "-I", "-S", kubectl.__file__, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "kubectl csi-fleet status" in found.stdout


def test_every_tool_but_completion_can_be_run():
    """A new tool must not be forgotten."""
    assert {one.value for one in TOOLS} - {"completion", "secret-roles"} <= set(kubectl.COMMANDS)


@pytest.mark.parametrize(
    "path", ["base/deployments.yaml", "components/central-worker/deployments.yaml"]
)
def test_shipped_pods_are_found(path):
    """The plug-in finds them by their label and their variable."""
    for item in yaml.safe_load_all((K8S / path).read_text()):
        template = item["spec"]["template"]
        if item["metadata"]["name"] == "redis":
            continue
        assert template["metadata"]["labels"]["csi-fleet.io/redis-client"] == "true"
        metadata = {"name": "p", "namespace": "n", "labels": template["metadata"]["labels"]}
        found = kubectl.place_of({"metadata": metadata, "spec": template["spec"]})
        assert found is not None
        assert found.container == item["metadata"]["name"]


@pytest.mark.parametrize(
    "words", [["migrate", "check", "--driver=d"], ["adopt", "d", "--dry-run"], ["release", "d"]]
)
def test_moves_run_here_with_the_readers_own_login(cluster, tmp_path, monkeypatch, words):
    """No csi-fleet pod is allowed to read the data (OPS-6); kubectl's flags choose the cluster."""
    told = cluster()
    program, seen = tmp_path / "csi-fleet", tmp_path / "seen"
    program.write_text(f'#!/bin/sh\necho "$@" > {seen}\ntest -f "${{2#--kubeconfig=}}" && exit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert kubectl.main(["--context=prod", *words]) == 3
    ((asked, _),) = told()
    assert asked == ["--context=prod", "config", "view", "--raw", "--minify", "--flatten"]
    command, config, *rest = seen.read_text().split()
    assert [command, *rest] == words
    assert not Path(config.partition("=")[2]).exists(), "the login does not stay on the disk"


def test_migrate_without_the_package_says_so(cluster, monkeypatch, capsys):
    cluster()
    monkeypatch.setattr(kubectl.shutil, "which", lambda _: None)
    assert kubectl.main(["migrate", "check", "--driver=d"]) == 1
    assert "Install the package" in capsys.readouterr().err


def test_the_file_alone_is_a_program(tmp_path):
    """docs/cli.md and README: a copy named as kubectl requires needs only Python (OPS-3)."""
    copy = tmp_path / "kubectl-csi_fleet"
    shutil.copy(kubectl.__file__, copy)
    done = subprocess.run([copy, "--help"], capture_output=True, text=True, check=True)
    assert "kubectl csi-fleet explain pvc" in done.stdout


# The owner of a pod chooses its labels, so they prove nothing (SEC2-5).

TENANTS = [
    pytest.param(pod("a", namespace="attic"), id="a namespace that sorts first"),
    pytest.param(pod("a", namespace="csi-fleet-records-of-mine"), id="a name like ours"),
    pytest.param(pod("a", namespace="zoo"), id="a namespace that is new"),
]


@pytest.mark.parametrize("theirs", TENANTS)
def test_a_tenants_pod_is_never_chosen(cluster, capsys, theirs):
    """It is not chosen whatever its labels, variables and name are, with or without a worker."""
    for items in ([theirs, pod("w")], [pod("w", ready=False), theirs]):
        told = cluster(*items)
        assert kubectl.main(["status"]) == 0
        assert "--namespace=csi-fleet" in told()[-1][0]
        assert "in pod csi-fleet/w\n" in capsys.readouterr().err
    told = cluster(theirs)
    assert kubectl.main(["status"]) == 1
    assert all("exec" not in run for run, _ in told()[-2:])
    assert "no running pod" in capsys.readouterr().err


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Pending"])
def test_a_pod_that_does_not_run_is_not_chosen(cluster, phase):
    cluster(pod("w", phase=phase))
    assert kubectl.main(["status"]) == 1


def test_several_namespaces_ask_for_a_choice(cluster, capsys):
    """It does not guess between two installations, or between drivers with their own workers."""
    told = cluster(pod("d", namespace="ebs"), pod("w"), pod("v"))
    assert kubectl.main(["status"]) == 1
    assert "run in csi-fleet, ebs. Choose a namespace with -n NAMESPACE" in capsys.readouterr().err
    assert len(told()) == 2
    cluster(pod("d", namespace="ebs"))
    assert kubectl.main(["-n", "ebs", "status"]) == 0


def test_the_charts_namespace_is_known_by_the_one_of_its_records(cluster):
    """Helm creates the release's namespace without any label."""
    labels = {"storage": {}, "storage-records": PART, "other": {}, "attic": {}}
    told = cluster(pod("w", namespace="storage"), pod("x", namespace="attic"), labels=labels)
    assert kubectl.main(["status"]) == 0
    assert "--namespace=storage" in told()[-1][0]


def test_what_the_pod_writes_is_data(cluster, capfd):
    """Control characters are escaped on both streams, for any exit code; there is no terminal."""
    hostile = (
        "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\r\u2028 wide 漢 \U000e0041\n".encode()
        + b"\xff\xf0\x9f"
    )
    told = cluster(pod("w"), output=hostile, error=hostile, exits=3)
    assert kubectl.main(["status"]) == 3
    out, err = capfd.readouterr()
    for text in (out, err.partition("\n")[2]):
        assert text == (
            r"\x1b]0;owned\x07\x1b[2J\x9b2J\u202e\r\u2028 wide 漢 \U000e0041"
            "\n"
            r"\xff\xf0\x9f"
        )
    run = told()[-1][0]
    assert not {"--tty", "-t", "--stdin", "-i"} & set(run)


def test_json_stays_json(cluster, capfd):
    """A multi-byte character across two blocks stays intact."""
    value = {"name": "漢" * 40_000, "hidden": "\u202e\x1b"}
    told = cluster(pod("w"), output=json.dumps(value["name"], ensure_ascii=False).encode())
    assert kubectl.main(["status", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == value["name"]
    cluster(pod("w"), output=json.dumps(value).encode())
    assert kubectl.main(["status", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == value
    assert told()


def test_a_refusal_of_namespaces_names_the_way_round(cluster, capsys):
    """A user who can read the pods of only one namespace has to name it."""
    cluster(pod("w"), code=1)
    assert kubectl.main(["status"]) == 1
    assert "-n NAMESPACE" in capsys.readouterr().err


def test_shipped_namespaces_say_whose_they_are():
    """Kustomize labels every object; the chart gives the records' namespace the same label."""
    found = [one for one in render(K8S / "overlays" / "prod-sidecar") if one["kind"] == "Namespace"]
    assert kubectl.trusted(found) == {"csi-fleet", "csi-fleet-records", "csi-driver-example"}
