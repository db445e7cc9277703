"""Provides the binaries of etcd, kube-apiserver, kube-controller-manager and a node's kubelet.

It tries these sources in order: the folder `KUBEBUILDER_ASSETS` if it contains all of them; the
cache; the official downloads, checked against their published SHA-256; a build from the Go modules
pinned in `controlplane_build/` (go.sum verifies every source). Downloaded and built binaries are
moved into the cache by an atomic rename, under a lock, so two runs at the same time do the work
once.

The environment variable `KUBERNETES`, for example v1.37.2, selects another of `ETCD_VERSIONS`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.go_build import GoBuildError, build_with_go

# The versions of Kubernetes that the tests run on, and etcd for each; the first is the default.
ETCD_VERSIONS = {"v1.36.1": "v3.6.8", "v1.37.2": "v3.7.0"}
KUBERNETES_VERSION = os.environ.get("KUBERNETES", next(iter(ETCD_VERSIONS)))
if KUBERNETES_VERSION not in ETCD_VERSIONS:
    raise ValueError(f"KUBERNETES={KUBERNETES_VERSION}: not one of {', '.join(ETCD_VERSIONS)}")
ETCD_VERSION = ETCD_VERSIONS[KUBERNETES_VERSION]
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager")
# The binaries that tests/support/node runs.
NODE_BINARIES = (*BINARIES, "kube-scheduler", "kubelet")
KUBERNETES_DOWNLOADS = "https://dl.k8s.io/release"
ETCD_DOWNLOADS = "https://github.com/etcd-io/etcd/releases/download"
# If the site is unreachable, the binaries are built instead, so do not wait long.
CONNECT_TIMEOUT_SECONDS = 5

Say = Callable[[str], None]


def say_to_stderr(line: str) -> None:
    """Print one progress line where the user sees it, even if stdout is piped."""
    print(f"[control plane] {line}", file=sys.stderr, flush=True)


def architecture() -> str:
    """Return this machine's platform in Go's notation, for example `linux-amd64`."""
    machine = platform.machine().lower()
    goarch = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return f"{platform.system().lower()}-{goarch}"


def cache_root() -> Path:
    """Return the cache folder, which `make clean` does not remove."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "csi-fleet"


def cache_directory() -> Path:
    """Return the folder of the binaries with exactly these versions for this machine."""
    name = f"{KUBERNETES_VERSION}-etcd-{ETCD_VERSION}-{architecture()}"
    return cache_root() / "controlplane" / name


def binaries_directory(say: Say = say_to_stderr, names: tuple[str, ...] = BINARIES) -> Path:
    """Return a folder with all of `names`; preparing it takes minutes the first time.

    Raises:
        GoBuildError: nothing to download, and the build failed; says what to do.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        lacking = _missing(Path(assets), names)
        if not lacking:
            return Path(assets)
        say(f"KUBEBUILDER_ASSETS lacks {', '.join(lacking)}: not used")
    cache = cache_directory()
    if not _missing(cache, names):
        return cache
    with _exclusive(cache.with_name(f"{cache.name}.lock"), say):
        lacking = _missing(cache, names)
        if lacking:
            _prepare(cache, lacking, say)
    return cache


def _missing(folder: Path, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not os.access(folder / name, os.X_OK)]


def _prepare(cache: Path, names: list[str], say: Say) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cache.parent) as scratch:
        to_build: list[str] = []
        for name in names:
            if to_build or not _download(name, Path(scratch), say):
                to_build.append(name)
            else:
                _install(Path(scratch, name), cache)
        if to_build:
            _build(to_build, Path(scratch), cache, say)
    say(f"ready after {time.monotonic() - started:.0f} s: {cache}")


def _build(names: list[str], scratch: Path, cache: Path, say: Say) -> None:
    say(f"building {', '.join(names)} from Go modules: once, about 8 minutes on 2 cores")
    for name in names:
        built = build_with_go(
            name, scratch, kubernetes_version=KUBERNETES_VERSION, cache=cache_root(), say=say
        )
        _install(built, cache)


def _install(built: Path, cache: Path) -> None:
    built.chmod(0o755)
    built.rename(cache / built.name)


def _download(name: str, scratch: Path, say: Say) -> bool:
    """Download one binary and check its sum; return False if the site cannot be reached."""
    try:
        if name == "etcd":
            _download_etcd(scratch, say)
        else:
            _download_kubernetes(name, scratch, say)
    except (OSError, urllib.error.URLError, ValueError, tarfile.TarError, KeyError) as error:
        say(f"no download of {name}: {error}")
        return False
    return True


def _download_kubernetes(name: str, scratch: Path, say: Say) -> None:
    system = architecture().replace("-", "/")
    url = f"{KUBERNETES_DOWNLOADS}/{KUBERNETES_VERSION}/bin/{system}/{name}"
    expected = _read(f"{url}.sha256").decode().split()[0]
    _fetch(url, scratch / name, expected, say)


def _download_etcd(scratch: Path, say: Say) -> None:
    base = f"{ETCD_DOWNLOADS}/{ETCD_VERSION}"
    folder = f"etcd-{ETCD_VERSION}-{architecture()}"
    lines = _read(f"{base}/SHA256SUMS").decode().splitlines()
    sums = {file: digest for digest, file in (line.split() for line in lines if line)}
    archive = scratch / f"{folder}.tar.gz"
    _fetch(f"{base}/{archive.name}", archive, sums[archive.name], say)
    with tarfile.open(archive) as tar:
        member = tar.extractfile(f"{folder}/etcd")
        if member is None:
            raise ValueError("no etcd in its archive")
        with (scratch / "etcd").open("wb") as out:
            shutil.copyfileobj(member, out)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read()
    return content


def _fetch(url: str, target: Path, expected_sha256: str, say: Say) -> None:
    """Stream `url` to `target`, with a progress line about every 10 s.

    Raises ValueError on a wrong sum.
    """
    digest, received, told = hashlib.sha256(), 0, time.monotonic()
    with (
        urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_SECONDS) as answer,
        target.open("wb") as out,
    ):
        total = int(answer.headers.get("Content-Length") or 0)
        say(f"downloading {target.name} ({total / 1e6:.0f} MB)")
        while chunk := answer.read(1 << 20):
            out.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"downloading {target.name}: {received / 1e6:.0f} of {total / 1e6:.0f} MB")
    if digest.hexdigest() != expected_sha256:
        raise ValueError(f"{target.name} has SHA-256 {digest.hexdigest()}, not {expected_sha256}")


@contextmanager
def _exclusive(path: Path, say: Say) -> Iterator[None]:
    """Hold the file lock `path`; the kernel frees it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is preparing the binaries: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


__all__ = [
    "BINARIES",
    "NODE_BINARIES",
    "GoBuildError",
    "binaries_directory",
    "cache_directory",
    "say_to_stderr",
]
