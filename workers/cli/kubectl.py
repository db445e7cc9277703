#!/usr/bin/env python3
"""`kubectl csi-fleet explain pvc shop/data`: the tools from a laptop with nothing but a kubeconfig.

An executable called `kubectl-csi_fleet` is a plug-in of kubectl. It finds a pod of the installation
and runs the command there (`kubectl exec`), where Redis, its password and certificate are at hand;
`migrate`, `adopt` and `release` run here, with the user's rights. No library but Python's own: the
file works alone.

Anybody may label a pod, so a pod counts only in a namespace that an administrator made csi-fleet's
(`trusted`), or that -n names. What the pod's program writes is data: it gets no terminal, and its
control characters are spelled out.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TextIO

# Pods with a container of ours; k8s/ and docs/migration.md put it on each of them.
SELECTOR: Final = "csi-fleet.io/redis-client=true"
NAME_LABEL: Final = "app.kubernetes.io/name"
# Namespaces with this label are drivers' (docs/install.md); the manifests and the chart put the
# other one on the namespace of records, whose name is the installation's and this ending.
DRIVERS_LABEL: Final = ("csi-fleet.io/drivers", "true")
PART_LABEL: Final = ("app.kubernetes.io/part-of", "csi-fleet")
RECORDS_ENDING: Final = "-records"
REDIS_VARIABLE: Final = "CSI_FLEET_REDIS_URL"
COMMANDS: Final = (
    *("status", "pending", "explain", "retry", "failed", "pause", "resume", "drain", "dry-run"),
    *("doctor", "shadow", "migrate", "adopt", "release", "audit", "version"),
    "support-bundle",
)
# Those that ask where csi-fleet's own objects are.
PLACED: Final = ("pause", "resume", "drain", "doctor")
# They read and write what no pod of csi-fleet may.
HERE: Final = ("migrate", "adopt", "release")
# Parts whose Redis user or service account may do less than a worker's.
LESSER: Final = ("beat", "flower", "watcher")
# What writes pauses, which the admission policy keeps from the accounts of workers.
PAUSING: Final = ("pause", "resume", "drain")
# Control and format characters, other line ends, halves of a pair.
_UNSEEN: Final = {"Cc", "Cf", "Zl", "Zp", "Cs"}
_OF_KUBECTL: Final = ("--context", "--kubeconfig", "--cluster", "--user", "--as")
_USAGE: Final = f"""\
kubectl csi-fleet COMMAND ...   runs `csi-fleet COMMAND ...` in a worker's pod of the cluster
                                (pause, resume, drain: in a watcher's;
                                {", ".join(HERE)}: here, with your own rights)

Commands: {", ".join(COMMANDS)}
  kubectl csi-fleet status
  kubectl csi-fleet explain pvc NAMESPACE/NAME
  kubectl csi-fleet dry-run -f claim.yaml
Flags, before the command: -n NAMESPACE of the pod (default: the namespaces of csi-fleet and its
drivers are searched), and kubectl's {", ".join(_OF_KUBECTL)}.
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
        if command[0] in HERE:
            return here(flags, command)
        place = choose(pods(flags, namespace), command[0])
        sys.stderr.write(f"kubectl csi-fleet: in pod {plain(f'{place.namespace}/{place.pod}')}\n")
        return run(flags, place, command)
    except PluginError as error:
        sys.stderr.write(f"kubectl csi-fleet: {plain(str(error))}\n")
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
    """The pods that have the label, in the namespace, else in all that `trusted` names.

    Raises:
        PluginError: kubectl is not there or says no.
    """
    where = [f"--namespace={namespace}"] if namespace else ["--all-namespaces"]
    found = asked(flags, "pods", f"--selector={SELECTOR}", *where)
    if namespace:
        return found
    allowed = trusted(asked(flags, "namespaces"))
    return [one for one in found if one["metadata"]["namespace"] in allowed]


def asked(flags: list[str], *what: str) -> list[dict[str, Any]]:
    """The items of `kubectl get`.

    Raises:
        PluginError: kubectl is not there or says no.
    """
    command = [kubectl(), *flags, "get", *what, "-o", "json"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise PluginError(f"cannot run {command[0]}: {error.strerror}") from None
    if found.returncode:
        raise PluginError(" ".join(found.stderr.split()) + " (-n NAMESPACE asks for less)")
    items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
    return items


def trusted(namespaces: list[dict[str, Any]]) -> set[str]:
    """The namespaces of csi-fleet and of its drivers, by labels that only administrators write."""
    found = set()
    for one in namespaces:
        name, labels = one["metadata"]["name"], one["metadata"].get("labels") or {}
        if PART_LABEL in labels.items():
            found |= {name, name.removesuffix(RECORDS_ENDING)}
        if DRIVERS_LABEL in labels.items():
            found.add(name)
    return found


def choose(items: list[dict[str, Any]], command: str) -> Place:
    """A worker that is ready, else another part of csi-fleet; a watcher for what writes pauses.

    Raises:
        PluginError: there is none, or they are in several namespaces.
    """
    watchers = [one for one in items if _part_of(one) == "watcher"]
    if command in PAUSING and watchers:
        items = watchers
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
            f"no running pod with the label {SELECTOR} in a namespace of csi-fleet: is csi-fleet "
            "installed in this cluster? -n NAMESPACE names another namespace"
        )
    places = sorted({place.namespace for _, place in ranked})
    if len(places) > 1:
        raise PluginError(
            f"pods of csi-fleet run in {', '.join(places)}; "
            "-n NAMESPACE chooses, before the command"
        )
    return ranked[0][1]


def place_of(item: dict[str, Any]) -> Place | None:
    """The pod's container that knows Redis."""
    metadata = item["metadata"]
    for container in item["spec"]["containers"]:
        if any(one["name"] == REDIS_VARIABLE for one in container.get("env") or ()):
            # Where pauses are kept, if not in the pod's own namespace.
            given = [*(container.get("command") or ()), *(container.get("args") or ())]
            kept = tuple(one for one in given if one.startswith("--namespace="))
            return Place(metadata["namespace"], metadata["name"], container["name"], kept)
    return None


def rank_of(item: dict[str, Any], place: Place) -> int:
    """Ready workers first."""
    name = _part_of(item)
    states = (item.get("status") or {}).get("containerStatuses") or ()
    is_ready = any(one["name"] == place.container and one.get("ready") for one in states)
    return (10 * (LESSER[::-1].index(name) + 1) if name in LESSER else 0) + (not is_ready)


def _part_of(item: dict[str, Any]) -> str:
    """Watcher, beat, flower or worker."""
    return str((item["metadata"].get("labels") or {}).get(NAME_LABEL, ""))


def run(flags: list[str], place: Place, command: list[str]) -> int:
    """The command in that container; a file of `-f` goes there through standard input."""
    command, file = with_standard_input(command)
    argv = [
        *(kubectl(), *flags, "exec", *(["--stdin"] if file else [])),
        *(f"--namespace={place.namespace}", place.pod),
        *(f"--container={place.container}", "--", "csi-fleet", command[0]),
        *(one for one in place.arguments if command[0] in PLACED),
        *command[1:],
    ]
    try:
        with Path(file or os.devnull).open("rb") as opened:
            return shown(argv, opened)
    except OSError as error:
        raise PluginError(f"{file or argv[0]}: {error.strerror}") from None


def shown(argv: list[str], opened: IO[bytes]) -> int:
    """Run a program, write what it writes with control characters spelled out; its exit code."""
    with subprocess.Popen(  # noqa: S603 - the user's kubectl
        argv, stdin=opened, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as child:
        copies = [
            threading.Thread(target=_copy, args=(child, *pair))
            for pair in ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
        ]
        for one in copies:
            one.start()
        try:
            for one in copies:
                one.join()
        except KeyboardInterrupt:  # kubectl has heard it too
            child.wait()
            return 130
        code = child.wait()
    return code if code >= 0 else 128 - code


def _copy(child: subprocess.Popen[bytes], source: IO[bytes], target: TextIO) -> None:
    """All of one stream as it comes; the program ends when nobody reads the copy any more."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
    encoding = target.encoding or "utf-8"
    try:
        while data := source.read(65536):
            _write(target, plain(decoder.decode(data)), encoding)
        _write(target, plain(decoder.decode(b"", final=True)), encoding)
    except OSError:
        child.terminate()


def _write(target: TextIO, text: str, encoding: str) -> None:
    target.write(text.encode(encoding, "backslashreplace").decode(encoding))
    target.flush()


def plain(text: str) -> str:
    """The text with control, direction and line separating characters spelled out.

    Names and messages are other people's: on a terminal they must not move the cursor, change
    colours or hide what stands before them (SEC-9).
    """
    return "".join(
        one if one in "\n\t" or unicodedata.category(one) not in _UNSEEN
        else one.encode("unicode_escape").decode()
        for one in text
    )  # fmt: skip


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
