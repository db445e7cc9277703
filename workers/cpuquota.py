"""Determines how many CPUs this process may use, for --automaxprocs.

Reads the quota of the control group (version 1 or 2). Without a quota, the process may use every
CPU in its affinity mask.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_V2_QUOTA: Final = "cpu.max"
_V1_QUOTA: Final = "cpu/cpu.cfs_quota_us"
_V1_PERIOD: Final = "cpu/cpu.cfs_period_us"


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the CPU quota, rounded down, but at least 1 and at most the number of usable CPUs."""
    granted = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return granted if quota is None else max(1, min(granted, math.floor(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the quota in CPUs; None if there is no limit or the control group is unreadable."""
    try:
        if (cgroup / _V2_QUOTA).exists():
            limit, period = (cgroup / _V2_QUOTA).read_text(encoding="ascii").split()
        else:
            limit = (cgroup / _V1_QUOTA).read_text(encoding="ascii").strip()
            period = (cgroup / _V1_PERIOD).read_text(encoding="ascii").strip()
        return None if limit in {"max", "-1"} else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
