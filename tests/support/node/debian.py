"""Unpacks containerd, runc, network plug-ins and busybox from Debian's packages, without
installing them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.apt import one_at_a_time
from tests.support.controlplane_binaries import cache_root

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "busybox-static")


class DebianError(RuntimeError):
    """The packages are not available; the text contains the reason."""


def programs() -> Path:
    """Return a folder with the packages' files, from the cache or unpacked now (3 s).

    Raises:
        DebianError: no apt, or no package.
    """
    folder = cache_root() / "node-debian"
    if (folder / "usr/sbin/runc").exists():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise DebianError("containerd comes from Debian's packages, and there is no apt-get here")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            _run(["apt-get", "download", "-qq", *PACKAGES], scratch)
        except DebianError:
            _run(["apt-get", "update", "-qq"], scratch)
            _run(["apt-get", "download", "-qq", *PACKAGES], scratch)
        draft = Path(scratch, "files")
        for package in Path(scratch).glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(draft)], scratch)
        if not folder.exists():
            draft.rename(folder)
    return folder


def search_path(folder: Path) -> str:
    """Return a PATH that begins with these programs."""
    places = [str(folder / place) for place in ("usr/bin", "usr/sbin", "bin", "sbin")]
    rest = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return os.pathsep.join([*places, *rest])


def _run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DebianError(f"{' '.join(command)}: {done.stderr[-500:]}")
