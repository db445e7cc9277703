"""The command `csi-fleet`: starts node helpers directly, the rest through `workers.__main__`.

A node helper must not load the modules that the other commands import (see `workers.node`).
"""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from types import ModuleType

NODE_PROGRAMS = frozenset({"livenessprobe", "csi-node-driver-registrar", "node"})


# Copied from the controller registry, because importing the registry would load too much here.
SIDECARS = frozenset(
    {
        *("csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"),
        *("snapshot-controller", "volume-data-source-validator"),
        "csi-external-health-monitor-controller",
        *("livenessprobe", "csi-node-driver-registrar"),
    }
)


def main() -> int:
    """Run the program and return its exit code.

    A program that is started by a sidecar's name (`command: [/csi-attacher]`) acts as that sidecar.
    """
    # While modules are being loaded, Ctrl-C ends the program without a traceback.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    own_name = Path(sys.argv[0]).name
    if own_name in SIDECARS:
        sys.argv.insert(1, own_name)
    if sys.argv[1:2] and sys.argv[1] in NODE_PROGRAMS:
        _import_grpc_without_tls()
        from workers.node.main import main as node_main  # noqa: PLC0415

        _hear_interrupts(is_ours=is_ours)
        return node_main(sys.argv[1], sys.argv[2:])
    # Imports create hardly any garbage, but garbage collection takes a tenth of the startup time.
    gc.disable()
    from workers.__main__ import main as fleet_main  # noqa: PLC0415

    _hear_interrupts(is_ours=is_ours)
    return fleet_main()


def _hear_interrupts(*, is_ours: bool) -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, unless SIGINT was ignored at startup."""
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _import_grpc_without_tls() -> None:
    """Load gRPC, and asyncio with it, without the optional module `ssl`.

    The helpers use only sockets on their own node, and `ssl` takes 4 of 35 MiB of memory.
    """
    sys.modules["ssl"] = cast("ModuleType", None)  # makes `import ssl` fail
    try:
        import csi_client.connection  # noqa: F401, PLC0415
    finally:
        del sys.modules["ssl"]
