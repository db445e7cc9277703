"""Gives one process of a test its own wall clock, which can be changed while the process runs.

```
clock = WallClock(directory / "redis.clock")
server = RedisServer(binary, directory, env=clock.env).start()
clock.step(-3600)                        # as NTP does after a boot with a wrong clock
```

The other clocks of the process (CLOCK_MONOTONIC, CLOCK_BOOTTIME) go on. Needs a C compiler,
which is installed where root may.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support import apt

_SOURCE = Path(__file__).with_name("wallclock.c")
_SECONDS = struct.Struct("q")


@cache
def _library() -> Path:
    code = _SOURCE.read_bytes()
    name = f"csi-fleet-wallclock-{os.getuid()}-{hashlib.sha256(code).hexdigest()[:16]}.so"
    built = Path(tempfile.gettempdir()) / name
    if not built.exists():
        if shutil.which("cc") is None:
            apt.install("gcc", "libc6-dev")
        # Several test processes may build it at the same time.
        with tempfile.NamedTemporaryFile(dir=built.parent, suffix=".so", delete=False) as made:
            command = ["cc", "-O2", "-shared", "-fPIC", "-o", made.name, str(_SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
            Path(made.name).replace(built)
    return built


class WallClock:
    """Sets how far the wall clock of a process is ahead, through a file of 8 bytes."""

    def __init__(self, path: Path, ahead_seconds: int = 0) -> None:
        self._path = path
        self._ahead = ahead_seconds
        path.write_bytes(_SECONDS.pack(ahead_seconds))

    @property
    def env(self) -> Mapping[str, str]:
        """Return the variables to add to the process's environment."""
        return {"LD_PRELOAD": str(_library()), "CLOCK_FILE": str(self._path)}

    @property
    def ahead_seconds(self) -> int:
        return self._ahead

    def step(self, seconds: int) -> None:
        """Set the clock forward or back, also for running processes."""
        self._ahead += seconds
        with self._path.open("r+b") as file:
            file.write(_SECONDS.pack(self._ahead))
