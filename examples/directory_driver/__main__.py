"""Run the driver: `python -m examples.directory_driver --endpoint unix:///run/csi.sock --root DIR`.

Files in the root: volumes/ and snapshots/ (see `storage`), control.json (see `behaviour`),
calls.jsonl (see `journal`). Prints `ready <port>` once it serves. After SIGTERM, running calls have
`--grace` seconds. The driver survives any kind of crash, because the root is its only state.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from pathlib import Path

from examples.directory_driver.attaching import Published
from examples.directory_driver.behaviour import Control
from examples.directory_driver.controller import (
    CONTROLLER_TYPES,
    EXPANSION_TYPES,
    GROUP_TYPES,
    PLUGIN_TYPES,
    DirectoryDriver,
)
from examples.directory_driver.journal import Journal
from examples.directory_driver.server import TlsServerFiles, start_server
from examples.directory_driver.storage import DirectoryStore

DEFAULT_CAPABILITIES = (
    "CONTROLLER_SERVICE",
    "CREATE_DELETE_VOLUME",
    "LIST_VOLUMES",
    "GET_CAPACITY",
    "CREATE_DELETE_SNAPSHOT",
    "LIST_SNAPSHOTS",
    "CLONE_VOLUME",
    "SINGLE_NODE_MULTI_WRITER",
)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _parser().parse_args()
    root: Path = options.root
    root.mkdir(parents=True, exist_ok=True)
    control = Control(options.control or root / "control.json")
    driver = DirectoryDriver(
        options.name,
        DirectoryStore(root, options.node_id if options.ids_of_node else ""),
        control,
        _capabilities(options.capabilities, bool(options.topology)),
        published=Published(root),
        segments=dict(options.topology),
        node_id=options.node_id,
        needs_node_expansion=options.node_expansion_required,
        mounts=options.mount,
        is_strict=options.strict,
        health=options.health or root / "health.json",
    )
    journal = Journal(root / "calls.jsonl", with_digests=options.record_secret_digests)
    # A signal does not always interrupt a wait for a lock; it does end this read of a socket.
    stopped, writer = socket.socketpair()
    writer.settimeout(0)
    signal.set_wakeup_fd(writer.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server, port = start_server(driver, control, journal, options.endpoint, _tls(options))
    print(f"ready {port}", flush=True)
    stopped.recv(1)
    # A call that hangs must not delay the exit: the root is consistent at any time.
    server.stop(options.grace).wait(options.grace + 0.5)
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="directory_driver", description="Example CSI driver")
    add = parser.add_argument
    add("--endpoint", required=True, help="unix:///path or tcp://host:port")
    add("--root", required=True, type=Path, help="directory for volumes and records")
    add("--name", default="directory.csi.example.org", help="driver name")
    add("--node-id", default="node-1", help="answer of NodeGetInfo")
    add("--ids-of-node", action="store_true", help="each node has a storage of its own")
    add("--mount", action="store_true", help="mount for real: needs root and mount(8)")
    add("--node-expansion-required", action="store_true", help="answered when a volume grows")
    add("--strict", action="store_true", help="another request under a known name is refused")
    add("--capabilities", default="", help="comma separated enum names; replaces the default set")
    add("--topology", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    add("--control", type=Path, help="control file, default ROOT/control.json")
    add("--health", type=Path, help="file with the volumes' health, default ROOT/health.json")
    add("--grace", type=float, default=1, help="seconds for calls under way at the end")
    add("--record-secret-digests", action="store_true", help="SHA-256 of secrets in the journal")
    add("--tls-certificate", type=Path)
    add("--tls-key", type=Path)
    add("--tls-client-ca", type=Path, help="refuse clients without a certificate of this CA")
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _capabilities(text: str, has_topology: bool) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    types = (PLUGIN_TYPES, EXPANSION_TYPES, CONTROLLER_TYPES, GROUP_TYPES)
    known = {name for one in types for name in one.DESCRIPTOR.values_by_name}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown capabilities: {', '.join(unknown)}")
    return [
        *(names or DEFAULT_CAPABILITIES),
        *["VOLUME_ACCESSIBILITY_CONSTRAINTS"] * has_topology,
    ]


def _tls(options: argparse.Namespace) -> TlsServerFiles | None:
    if options.tls_certificate is None:
        return None
    if options.tls_key is None:
        raise SystemExit("--tls-certificate needs --tls-key")
    return TlsServerFiles(options.tls_certificate, options.tls_key, options.tls_client_ca)


if __name__ == "__main__":
    main()
