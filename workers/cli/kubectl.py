#!/usr/bin/env python3
"""`kubectl csi-fleet explain pvc shop/data`: the tools from a laptop with nothing but a kubeconfig.

An executable called `kubectl-csi_fleet` is a plug-in of kubectl. It finds a pod of the installation
and runs the command there (`kubectl exec`), where Redis, its password and certificate are at hand;
`migrate` runs here, for it reads what no pod of ours may. No library but Python's own: the file
works alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Pods with a container of ours; k8s/ and docs/migration.md put it on each of them.
SELECTOR: Final = "csi-fleet.io/redis-client=true"
NAME_LABEL: Final = "app.kubernetes.io/name"
REDIS_VARIABLE: Final = "CSI_FLEET_REDIS_URL"
COMMANDS: Final = (
    *("status", "explain", "retry", "failed", "pause", "resume", "drain", "dry-run", "doctor"),
    *("shadow", "migrate", "audit", "version"),
)
# Parts whose Redis user or service account may do less than a worker's.
LESSER: Final = ("beat", "flower", "watcher")
_OF_KUBECTL: Final = ("--context", "--kubeconfig", "--cluster", "--user", "--as")
_USAGE: Final = f"""\
kubectl csi-fleet COMMAND ...   runs `csi-fleet COMMAND ...` in a worker's pod of the cluster
                                (migrate: here, with your own rights)

Commands: {", ".join(COMMANDS)}
  kubectl csi-fleet status
  kubectl csi-fleet explain pvc NAMESPACE/NAME
  kubectl csi-fleet dry-run -f claim.yaml
Flags, before the command: -n NAMESPACE of the installation (default: all are searched), and
kubectl's {", ".join(_OF_KUBECTL)}.
"""


class PluginError(Exception):
    """One line for the user."""


@dataclass(frozen=True, slots=True)
class Place:
    """A running container of ours; `arguments` are what its tools need to be told besides."""

    namespace: str
    pod: str
    container: str
    arguments: tuple[str, ...] = ()


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        flags, namespace, command = split(arguments)
        if not command or command[0] in {"-h", "--help", "help"}:
            sys.stdout.write(_USAGE)
            return 0 if command else 2
        if command[0] == "migrate":
            return here(flags, command)
        return run(flags, choose(pods(flags, namespace)), command)
    except PluginError as error:
        sys.stderr.write(f"kubectl csi-fleet: {error}\n")
        return 1


def split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Flags for kubectl, the installation's namespace, and the command with its arguments."""
    flags: list[str] = []
    namespace = ""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in {"-h", "--help"}:
        name, equals, value = rest.pop(0).partition("=")
        if name not in {"-n", "--namespace", *_OF_KUBECTL}:
            raise PluginError(f"unknown flag {name}; see kubectl csi-fleet --help")
        if not equals:
            if not rest:
                raise PluginError(f"{name} needs a value")
            value = rest.pop(0)
        if name in {"-n", "--namespace"}:
            namespace = value
        else:
            flags.append(f"{name}={value}")
    if rest and rest[0] not in {*COMMANDS, "-h", "--help", "help"}:
        raise PluginError(f"unknown command {rest[0]}; commands are {', '.join(COMMANDS)}")
    return flags, namespace, rest


def pods(flags: list[str], namespace: str) -> list[dict[str, Any]]:
    """The pods with a container of ours.

    Raises:
        PluginError: kubectl is not there or says no.
    """
    where = [f"--namespace={namespace}"] if namespace else ["--all-namespaces"]
    command = [kubectl(), *flags, "get", "pods", f"--selector={SELECTOR}", *where, "-o", "json"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise PluginError(f"cannot run {command[0]}: {error.strerror}") from None
    if found.returncode:
        hint = "" if namespace else " (-n NAMESPACE asks for less)"
        raise PluginError(" ".join(found.stderr.split()) + hint)
    items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
    return items


def choose(items: list[dict[str, Any]]) -> Place:
    """A worker that is ready, else another part of ours.

    Raises:
        PluginError: there is none.
    """
    ranked = sorted(
        (
            (rank, place)
            for item in items
            if (item.get("status") or {}).get("phase") == "Running"
            and not item["metadata"].get("deletionTimestamp")
            and (place := place_of(item)) is not None
            for rank in [rank_of(item, place)]
        ),
        key=lambda one: (one[0], one[1].namespace, one[1].pod),
    )
    if not ranked:
        raise PluginError(
            f"no running pod with the label {SELECTOR}: is csi-fleet installed in this cluster, "
            "and in the namespace that -n names?"
        )
    return ranked[0][1]


def place_of(item: dict[str, Any]) -> Place | None:
    """The pod's container that knows Redis."""
    metadata = item["metadata"]
    for container in item["spec"]["containers"]:
        if any(one["name"] == REDIS_VARIABLE for one in container.get("env") or ()):
            # Where copies of pauses are kept, if not in the pod's own namespace.
            given = [*(container.get("command") or ()), *(container.get("args") or ())]
            kept = tuple(one for one in given if one.startswith("--namespace="))
            return Place(metadata["namespace"], metadata["name"], container["name"], kept)
    return None


def rank_of(item: dict[str, Any], place: Place) -> int:
    """Ready workers first."""
    name = (item["metadata"].get("labels") or {}).get(NAME_LABEL, "")
    states = (item.get("status") or {}).get("containerStatuses") or ()
    is_ready = any(one["name"] == place.container and one.get("ready") for one in states)
    return (10 * (LESSER[::-1].index(name) + 1) if name in LESSER else 0) + (not is_ready)


def run(flags: list[str], place: Place, command: list[str]) -> int:
    """The command in that container; a file of `-f` goes there through standard input."""
    command, file = with_standard_input(command)
    is_terminal = not file and sys.stdin.isatty() and sys.stdout.isatty()
    options = ["--stdin", *(["--tty"] if is_terminal else [])] if file or is_terminal else []
    argv = [
        *(kubectl(), *flags, "exec", *options, f"--namespace={place.namespace}", place.pod),
        *(f"--container={place.container}", "--", "csi-fleet", command[0]),
        *(one for one in place.arguments if command[0] != "version"),
        *command[1:],
    ]
    if not file:
        return subprocess.run(argv, check=False).returncode  # noqa: S603 - the user's kubectl
    try:
        with Path(file).open("rb") as opened:
            return subprocess.run(argv, stdin=opened, check=False).returncode  # noqa: S603
    except OSError as error:
        raise PluginError(f"{file}: {error.strerror}") from None


def here(flags: list[str], command: list[str]) -> int:
    """The command on this machine, with the cluster and the login that kubectl would take.

    Raises:
        PluginError: the package is not installed here, or kubectl says no.
    """
    program = shutil.which("csi-fleet")
    if program is None:
        raise PluginError(
            f"{command[0]} asks with your own rights, so it needs the package on this machine: "
            "no csi-fleet on the PATH"
        )
    view = [kubectl(), *flags, "config", "view", "--raw", "--minify", "--flatten"]
    found = subprocess.run(view, capture_output=True, text=True, check=False)  # noqa: S603
    if found.returncode:
        raise PluginError(" ".join(found.stderr.split()))
    with tempfile.NamedTemporaryFile("w", suffix=".kubeconfig") as config:
        config.write(found.stdout)
        config.flush()
        argv = [program, command[0], f"--kubeconfig={config.name}", *command[1:]]
        return subprocess.run(argv, check=False).returncode  # noqa: S603


def with_standard_input(command: list[str]) -> tuple[list[str], str]:
    """`-f FILE` of dry-run names a file of the laptop: it is sent as `-f -`."""
    for index, one in enumerate(command):
        name, equals, value = one.partition("=")
        if command[0] == "dry-run" and name in {"-f", "--filename"}:
            if equals:
                return [*command[:index], f"{name}=-", *command[index + 1 :]], value
            if command[index + 1 :]:
                rest = [name, "-", *command[index + 2 :]]
                return [*command[:index], *rest], command[index + 1]
    return command, ""


def kubectl() -> str:
    """The program, another one by KUBECTL."""
    return os.environ.get("KUBECTL", "kubectl")


if __name__ == "__main__":
    sys.exit(main())
