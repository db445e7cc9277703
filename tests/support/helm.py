"""Provides Helm as a library: a package that contains it, verified by hash and kept in the cache.

Only the charts' tests and `make release` need its 75 MB, so it is not in the lock. The command
`python -m tests.support.helm` accepts the Helm commands that the documentation tells a reader to
type.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane_binaries import cache_root

VERSION = "0.2.2"
LOCK = f"""\
helm-python-sdk=={VERSION} \\
    --hash=sha256:28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578
"""


class NoHelmError(RuntimeError):
    """Helm cannot be installed on this machine (the package exists for Linux on amd64)."""


def helm() -> Any:
    """Return the module `helm_python`.

    Raises:
        NoHelmError: not to be had here.
    """
    folder = cache_root() / f"helm-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module("helm_python")


def objects(
    chart: Any, values: Mapping[str, Any], namespace: str = "csi-fleet"
) -> list[dict[str, Any]]:
    """Return all objects of a chart that the library loaded."""
    texts = chart.render(values, name="fleet", namespace=namespace)
    return [
        one
        for name, text in texts.items()
        if name.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one
    ]


def _install(folder: Path) -> None:
    scratch = folder.with_name(f".new-{folder.name}-{os.getpid()}")
    scratch.mkdir()
    lock = scratch / "requirements.txt"
    lock.write_text(LOCK)
    uv = Path(sys.executable).with_name("uv")
    installer = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    options = ["--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    command = [*installer, "install", *options, "--target", str(scratch / "lib"), "-r", str(lock)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(scratch, ignore_errors=True)
        raise NoHelmError(f"Helm cannot be installed here: {done.stderr[-1000:]}")
    (scratch / "lib").rename(folder)
    shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Run `helm install|upgrade NAME CHART` or `helm uninstall NAME`, with the usual flags."""
    options = _parser().parse_args(arguments)
    library = helm()
    try:
        with library.Config(
            kubeconfig_path=os.environ["KUBECONFIG"], namespace=options.namespace
        ) as config:
            _act(library, config, options)
    except library.HelmError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    print(f"{options.action} {options.name}: done")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="helm")
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("install", "upgrade", "uninstall"):
        one = actions.add_parser(action)
        one.add_argument("name")
        one.add_argument("-n", "--namespace", default="default")
        one.add_argument("--wait", action="store_true")
        if action != "uninstall":
            one.add_argument("chart")
            one.add_argument("--set", action="append", default=[])
            one.add_argument("-f", "--values", action="append", default=[])
        if action == "install":
            one.add_argument("--create-namespace", action="store_true")
        if action == "upgrade":
            one.add_argument("--reuse-values", action="store_true")
            # The library has no such choice; with one version of the chart it is the same.
            one.add_argument("--reset-then-reuse-values", action="store_true", dest="reuse_values")
    return parser


def _act(library: Any, config: Any, options: argparse.Namespace) -> None:
    waiting = {"wait": "watcher", "timeout": 300} if options.wait else {}
    if options.action == "uninstall":
        config.uninstall(options.name, **waiting)
        return
    values: dict[str, Any] = {}
    for path in options.values:
        _merge(values, library.values_from_yaml(Path(path).read_text()))
    for text in options.set:
        _merge(values, library.parse_set_string(text))
    if options.action == "install":
        more = {"create_namespace": options.create_namespace}
        config.install(options.chart, options.name, values, **waiting, **more)
    else:
        more = {"reuse_values": options.reuse_values}
        config.upgrade(options.chart, options.name, values, **waiting, **more)


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    """Merge values; later values win, map by map, and a list is replaced as a whole."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
