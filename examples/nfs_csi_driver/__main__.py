"""Run the driver: `python -m examples.nfs_csi_driver --endpoint unix:///csi.sock --nodeid N`."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from examples.nfs_csi_driver.attaching import AttachService
from examples.nfs_csi_driver.controller import VolumeService
from examples.nfs_csi_driver.errors import RpcError
from examples.nfs_csi_driver.identity import IdentityService
from examples.nfs_csi_driver.mounters import CommandMounter, FakeMounter, Mounter
from examples.nfs_csi_driver.node import NodeService
from examples.nfs_csi_driver.parameters import POLICIES, octal
from examples.nfs_csi_driver.records import Locks
from examples.nfs_csi_driver.server import EndpointError, start
from examples.nfs_csi_driver.settings import Settings
from examples.nfs_csi_driver.snapshots import SnapshotService

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if options.v >= 5 else logging.INFO,
        format="%(levelname).1s %(asctime)s %(message)s",
    )
    if options.role != "controller" and not options.nodeid:
        sys.stderr.write("--nodeid is required unless --role=controller\n")
        return 1
    settings = _settings(options)
    if settings.is_demo and not settings.has_default:
        sys.stderr.write("--volume-id-scheme=demo needs --default-server and --default-share\n")
        return 1
    # A signal does not always interrupt a wait for a lock; it does end this read of a socket.
    stopped, writer = socket.socketpair()
    writer.settimeout(0)
    signal.set_wakeup_fd(writer.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        server = start(options.endpoint, services(settings, _mounter(options, settings)))
    except EndpointError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print("ready", flush=True)
    stopped.recv(1)
    server.stop(None).wait(1)
    # Records are consistent at any time, so the exit need not wait for a long copy.
    os._exit(0)


def services(settings: Settings, mounter: Mounter) -> list[object]:
    """Return the services of the configured role."""
    volumes = VolumeService(settings, mounter, Locks())
    found: list[object] = [IdentityService(settings, mounter)]
    if settings.role != "node":
        found += [volumes, SnapshotService(volumes)]
        found += [AttachService(volumes)] * settings.attach
    if settings.role != "controller":
        found.append(NodeService(volumes))
    return found


def _mounter(options: argparse.Namespace, settings: Settings) -> Mounter:
    if options.mounter == "fake":
        return FakeMounter(settings.state_dir)
    work = options.working_mount_dir or Path(tempfile.mkdtemp(prefix="nfs-csi-"))
    root = settings.state_dir / "exports" if options.mounter == "bind" else None
    return CommandMounter(work, root, options.mount_timeout)


def _settings(options: argparse.Namespace) -> Settings:
    minutes = options.vol_stats_cache_expire_in_minutes
    return Settings(
        name=options.drivername,
        node_id=options.nodeid,
        role=options.role,
        state_dir=options.state_dir,
        mount_permissions=options.mount_permissions,
        default_on_delete=options.default_ondelete_policy or "delete",
        stats_cache_seconds=60.0 * (minutes if minutes > 0 else 10),
        remove_archived=options.remove_archived_volume_path,
        compress_snapshots=options.enable_snapshot_compression,
        default_server=options.default_server,
        default_share=options.default_share,
        id_scheme=options.volume_id_scheme,
        id_prefix=options.volume_id_prefix,
        attach=options.attach,
        delete_in_background=not options.delete_in_call,
        allow_shared_directories=options.allow_shared_directories,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nfs_csi_driver", description="CSI driver for NFS")
    add, flag = parser.add_argument, functools.partial(_add_flag, parser)
    add("--endpoint", required=True, help="unix:///path or tcp://host:port")
    add("--nodeid", default="", help="name of this node")
    add("--drivername", default="nfs.csi.k8s.io")
    add("--mount-permissions", type=_mode, default=0, help="octal mode of new volumes; 0 is 0777")
    add("--working-mount-dir", type=Path, help="folder of the controller's own mounts")
    add("--default-ondelete-policy", choices=("", *POLICIES), default="")
    add("--vol-stats-cache-expire-in-minutes", type=int, default=10)
    flag("--remove-archived-volume-path")
    flag("--use-tar-command-in-snapshot", help="accepted; always the library")
    flag("--enable-snapshot-compression", default=True)
    add("--role", choices=("all", "controller", "node"), default="all")
    add("--mounter", choices=("nfs", "bind", "fake"), default="nfs")
    add("--mount-timeout", type=float, default=110.0, help="seconds")
    add("--volume-id-scheme", choices=("full", "demo"), default="full")
    add("--volume-id-prefix", default="nfs-volume", help="of the demo scheme")
    add("--default-server", default="")
    add("--default-share", default="")
    flag("--attach", help="answer ControllerPublishVolume")
    flag("--delete-in-call", help="remove a volume's content before answering")
    flag("--allow-shared-directories", help="several volumes may name one subDir")
    add("--state-dir", type=Path, default=Path("nfs-csi-state"), help="of mounters bind and fake")
    add("-v", type=int, default=2, help="5 logs probes too")
    return parser


def _bool(text: str) -> bool:
    return text.lower() in {"true", "1", "t"}


def _add_flag(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    default: bool = False,
    help: str = "",  # noqa: A002
) -> None:
    """Add a Go boolean flag: `--x` or `--x=false`."""
    parser.add_argument(name, type=_bool, nargs="?", const=True, default=default, help=help)


def _mode(text: str) -> int:
    try:
        return octal(text)
    except RpcError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no octal mode") from error


if __name__ == "__main__":
    sys.exit(main())
