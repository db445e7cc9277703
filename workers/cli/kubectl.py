#!/usr/bin/env python3
"""`kubectl csi-fleet explain pvc shop/data`: runs the tools from a machine with only a kubeconfig.

kubectl runs an executable named `kubectl-csi_fleet` as a plug-in. The plug-in finds a pod of the
installation and runs the command there (`kubectl exec`), where Redis, its password and its
certificate are available. `migrate`, `adopt` and `release` run locally, with the user's
permissions. This file imports only the standard library, so it works without the package.

Any user may be able to label a pod. A pod therefore counts only if it is in a namespace that an
administrator gave to csi-fleet (`trusted`) or that -n names. The output of the pod's program is not
trusted: the program gets no terminal, and control characters in its output are escaped.
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

NAME_LABEL: Final = "app.kubernetes.io/name"
# Namespaces with the first label belong to drivers (docs/install.md). The manifests and the chart
# put `PART_LABEL` on the namespace of records. That namespace has the installation's name with
# `RECORDS_ENDING` appended.
DRIVERS_LABEL: Final = ("csi-fleet.io/drivers", "true")
# k8s/ and docs/migration.md put this label on each pod with a csi-fleet container; Redis's
# NetworkPolicy admits pods that have it.
REDIS_CLIENT: Final = ("csi-fleet.io/redis-client", "true")
SELECTOR: Final = "=".join(REDIS_CLIENT)
PART_LABEL: Final = ("app.kubernetes.io/part-of", "csi-fleet")
RECORDS_ENDING: Final = "-records"
REDIS_VARIABLE: Final = "CSI_FLEET_REDIS_URL"
COMMANDS: Final = (
    *("status", "pending", "explain", "retry", "failed", "pause", "resume", "drain", "dry-run"),
    *("doctor", "shadow", "migrate", "adopt", "release", "audit", "version"),
    "support-bundle",
)
# Commands that need to know the namespace of csi-fleet's own objects.
PLACED: Final = ("pause", "resume", "drain", "doctor")
# Commands that need permissions which no pod of csi-fleet has.
HERE: Final = ("migrate", "adopt", "release")
# Parts whose Redis user or service account has fewer permissions than a worker's.
LESSER: Final = ("beat", "flower", "watcher")
# Commands that write pauses, which the admission policy forbids to workers' accounts, and commands
# that list all claims, which only watchers are allowed to do.
OF_WATCHERS: Final = ("pause", "resume", "drain", "pending")
# `explain` also lists all claims when it explains an object of one of these kinds.
WHOLES: Final = (
    *("driver", "drivers", "csidriver"),
    *("class", "classes", "sc", "storageclass", "storageclasses"),
    *("namespace", "namespaces", "ns"),
)
# Flags of `explain` that have no value; the word after any other flag is its value.
SWITCHES: Final = (
    *("-h", "--help", "--version", "--redis-insecure"),
    *("--log-text-split-stream", "--log-json-split-stream"),
)
# Unicode categories: control and format characters, line separators, lone surrogates.
_UNSEEN: Final = {"Cc", "Cf", "Zl", "Zp", "Cs"}
_OF_KUBECTL: Final = ("--context", "--kubeconfig", "--cluster", "--user", "--as")
_USAGE: Final = f"""\
kubectl csi-fleet COMMAND ...   runs `csi-fleet COMMAND ...` in a worker's pod of the cluster
                                ({", ".join(OF_WATCHERS)}: in a watcher's;
                                {", ".join(HERE)}: here, with your own permissions)

Commands: {", ".join(COMMANDS)}
  kubectl csi-fleet status
  kubectl csi-fleet explain pvc NAMESPACE/NAME
  kubectl csi-fleet dry-run -f claim.yaml
Flags, before the command: -n NAMESPACE of the pod (default: the namespaces of csi-fleet and its
drivers are searched), and kubectl's {", ".join(_OF_KUBECTL)}.
"""


class PluginError(Exception):
    """An error that is reported to the user in one line."""

    exit_code = 1


class UsageError(PluginError):
    """The flags or the command are wrong; the exit code is the one that csi-fleet itself uses."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Place:
    """A running container of csi-fleet; `arguments` are added to the `PLACED` commands."""

    namespace: str
    pod: str
    container: str
    arguments: tuple[str, ...] = ()


def main(argv: list[str] | None = None) -> int:
    """Run the plug-in; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        flags, namespace, command = split(arguments)
        if not command or command[0] in {"-h", "--help", "help"}:
            sys.stdout.write(_USAGE)
            return 0 if command else 2
        if command[0] in HERE:
            return here(flags, command)
        place = choose(pods(flags, namespace), command)
        sys.stderr.write(f"kubectl csi-fleet: in pod {plain(f'{place.namespace}/{place.pod}')}\n")
        return run(flags, place, command)
    except PluginError as error:
        sys.stderr.write(f"kubectl csi-fleet: {plain(str(error))}\n")
        return error.exit_code


def split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Return kubectl's flags, the installation's namespace, and the command with its arguments."""
    flags: list[str] = []
    namespace = ""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in {"-h", "--help"}:
        name, equals, value = rest.pop(0).partition("=")
        if name not in {"-n", "--namespace", *_OF_KUBECTL}:
            raise UsageError(f"unknown flag {name}; see kubectl csi-fleet --help")
        if not equals:
            if not rest:
                raise UsageError(f"{name} needs a value")
            value = rest.pop(0)
        if name in {"-n", "--namespace"}:
            namespace = value
        else:
            flags.append(f"{name}={value}")
    if rest and rest[0] not in {*COMMANDS, "-h", "--help", "help"}:
        raise UsageError(f"unknown command {rest[0]}; the commands are {', '.join(COMMANDS)}")
    return flags, namespace, rest


def pods(flags: list[str], namespace: str) -> list[dict[str, Any]]:
    """Return the labelled pods in `namespace`, or else in all namespaces that `trusted` returns.

    Raises:
        PluginError: kubectl is missing or fails.
    """
    where = [f"--namespace={namespace}"] if namespace else ["--all-namespaces"]
    found = asked(flags, "pods", f"--selector={SELECTOR}", *where)
    if namespace:
        return found
    allowed = trusted(asked(flags, "namespaces"))
    return [one for one in found if one["metadata"]["namespace"] in allowed]


def asked(flags: list[str], *what: str) -> list[dict[str, Any]]:
    """Return the items of `kubectl get`.

    Raises:
        PluginError: kubectl is missing or fails.
    """
    command = [kubectl(), *flags, "get", *what, "-o", "json"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise PluginError(f"cannot run {command[0]}: {error.strerror}") from None
    if found.returncode:
        raise PluginError(
            " ".join(found.stderr.split()) + " (-n NAMESPACE needs fewer permissions)"
        )
    items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
    return items


def trusted(namespaces: list[dict[str, Any]]) -> set[str]:
    """Return the namespaces of csi-fleet and its drivers.

    They are recognized by labels that only administrators can set.
    """
    found = set()
    for one in namespaces:
        name, labels = one["metadata"]["name"], one["metadata"].get("labels") or {}
        if PART_LABEL in labels.items():
            found |= {name, name.removesuffix(RECORDS_ENDING)}
        if DRIVERS_LABEL in labels.items():
            found.add(name)
    return found


def choose(items: list[dict[str, Any]], command: list[str]) -> Place:
    """Choose a ready worker, or else another part of csi-fleet; for some commands, a watcher.

    Raises:
        PluginError: there is no such pod, or there are such pods in several namespaces.
    """
    watchers = [one for one in items if _part_of(one) == "watcher"]
    noun = (operands(command[1:]) or [""])[0]
    is_whole = command[0] == "explain" and noun.partition("/")[0].lower() in WHOLES
    if (command[0] in OF_WATCHERS or is_whole) and watchers:
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
            f"no running pod has the label {SELECTOR} in any csi-fleet namespace. Check that "
            "csi-fleet is installed in this cluster, or name a different namespace with -n "
            "NAMESPACE"
        )
    places = sorted({place.namespace for _, place in ranked})
    if len(places) > 1:
        raise PluginError(
            f"pods of csi-fleet run in {', '.join(places)}. Choose a namespace with -n NAMESPACE "
            "before the command"
        )
    return ranked[0][1]


def operands(words: list[str]) -> list[str]:
    """Return the words that are neither a flag of `explain` nor the value of a flag."""
    found: list[str] = []
    rest = iter(words)
    for one in rest:
        if one == "--":
            return [*found, *rest]
        if not one.startswith("-") or one == "-":
            found.append(one)
        elif "=" not in one and one not in SWITCHES and (one.startswith("--") or len(one) == 2):
            next(rest, "")
    return found


def place_of(item: dict[str, Any]) -> Place | None:
    """Return the pod's container that is configured for Redis, or None if there is none."""
    metadata = item["metadata"]
    for container in item["spec"]["containers"]:
        if any(one["name"] == REDIS_VARIABLE for one in container.get("env") or ()):
            # Pass on the namespace of the pauses if it is not the pod's own namespace.
            given = [*(container.get("command") or ()), *(container.get("args") or ())]
            kept = tuple(one for one in given if one.startswith("--namespace="))
            return Place(metadata["namespace"], metadata["name"], container["name"], kept)
    return None


def rank_of(item: dict[str, Any], place: Place) -> int:
    """Return the sort key of a pod: workers come first, and among equal parts the ready ones."""
    name = _part_of(item)
    states = (item.get("status") or {}).get("containerStatuses") or ()
    is_ready = any(one["name"] == place.container and one.get("ready") for one in states)
    return (10 * (LESSER[::-1].index(name) + 1) if name in LESSER else 0) + (not is_ready)


def _part_of(item: dict[str, Any]) -> str:
    """Return the part that the pod runs: watcher, beat, flower or worker."""
    return str((item["metadata"].get("labels") or {}).get(NAME_LABEL, ""))


def run(flags: list[str], place: Place, command: list[str]) -> int:
    """Run the command in the container; the file given with `-f` is sent through standard input."""
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
    """Run a program and copy its output with control characters escaped; return its exit code."""
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
        except KeyboardInterrupt:  # kubectl has received it too
            child.wait()
            return 130
        code = child.wait()
    return code if code >= 0 else 128 - code


def _copy(child: subprocess.Popen[bytes], source: IO[bytes], target: TextIO) -> None:
    """Copy a stream as it arrives; if the output is closed, terminate the program."""
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
    """Return the text with control, direction and line separator characters escaped.

    Names and messages are written by other users. On a terminal, they must not move the cursor,
    change colours or hide the text before them.
    """
    return "".join(
        one if one in "\n\t" or unicodedata.category(one) not in _UNSEEN
        else one.encode("unicode_escape").decode()
        for one in text
    )  # fmt: skip


def here(flags: list[str], command: list[str]) -> int:
    """Run the command on this machine, with the cluster and credentials that kubectl would use.

    Raises:
        PluginError: the package is not installed here, or kubectl fails.
    """
    program = shutil.which("csi-fleet")
    if program is None:
        raise PluginError(
            f"{command[0]} uses your own permissions, so it needs csi-fleet on this machine, but "
            "there is no csi-fleet on the PATH. Install the package"
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
    """Replace dry-run's `-f FILE` with `-f -`; return the new command and FILE.

    FILE is on this machine, where the pod cannot read it.
    """
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
    """Return the kubectl program; the variable KUBECTL overrides it."""
    return os.environ.get("KUBECTL", "kubectl")


if __name__ == "__main__":
    sys.exit(main())
