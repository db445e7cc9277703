"""The command `csi-fleet`: node helpers at once, everything else by `workers.__main__`.

A node helper must not carry what the other commands import (see `workers.node`).
"""

from __future__ import annotations

import sys

NODE_PROGRAMS = frozenset({"livenessprobe", "csi-node-driver-registrar", "node"})


def main() -> int:
    """Entry point; returns the exit code."""
    if sys.argv[1:2] and sys.argv[1] in NODE_PROGRAMS:
        from workers.node.main import main as node_main  # noqa: PLC0415

        return node_main(sys.argv[1], sys.argv[2:])
    from workers.__main__ import main as fleet_main  # noqa: PLC0415

    return fleet_main()
