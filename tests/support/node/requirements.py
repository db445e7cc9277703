"""Checks whether this machine can run a node, before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("unshare", "nsenter", "mount", "losetup", "ip", "apt-get", "dpkg", "openssl")


def lacking() -> str:
    """Return what is missing, as text; "" if a node can be started."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, for namespaces, cgroups and mounts"
    if missing := [one for one in PROGRAMS if shutil.which(one) is None]:
        return f"programs are missing: {', '.join(missing)}"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "the kernel has no overlay file system"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "true"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else ""
