"""Copies of directories: clone, pack, unpack (NF-050 to NF-055)."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import Final

from examples.nfs_csi_driver.errors import RpcError

PACKED: Final = (".tar.gz", ".tar")


def copy_tree(source: Path, target: Path) -> None:
    """Copy with links, modes, times, holes and, as root, owners."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)
    for directory, names, files in os.walk(source):
        for name in (".", *names, *files):
            original = Path(directory, name)
            _keep_owner(original.lstat(), target / original.relative_to(source))


def _copy_file(source: str, target: str) -> str:
    """One file, holes stay holes."""
    with Path(source).open("rb") as reader, Path(target).open("wb") as writer:
        size, at = os.fstat(reader.fileno()).st_size, 0
        while at < size:
            try:
                start = os.lseek(reader.fileno(), at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                break
            end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            reader.seek(start)
            writer.seek(start)
            remaining = end - start
            while remaining > 0:
                block = reader.read(min(remaining, 1 << 20))
                writer.write(block)
                remaining -= len(block)
            at = end
        writer.truncate(size)
    shutil.copystat(source, target)
    return target


def _keep_owner(status: os.stat_result, path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)


def tree_size(path: Path) -> int:
    """Bytes of all files."""
    return sum(
        Path(directory, name).lstat().st_size
        for directory, _, names in os.walk(path)
        for name in names
    )


def pack(source: Path, archive: Path, *, compress: bool) -> None:
    """Write the archive; whole or not there (NF-051)."""
    draft = archive.with_name(f".draft-{archive.name}")
    with draft.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz" if compress else "w") as tar:
            tar.add(source, arcname=".")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(archive)


def unpack(archive: Path, target: Path) -> None:
    """Unpack below the target and nowhere else (NF-054).

    Raises:
        RpcError: INTERNAL; the archive holds what would leave the target, or a device.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter=_checked, numeric_owner=True)
    except (tarfile.TarError, OSError) as error:
        raise RpcError("INTERNAL", f"archive is not usable: {error}") from error


def _checked(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """The library's checks, but modes and owners as they were."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise tarfile.OutsideDestinationError(member, member.name)
    if member.issym() and member.linkname.startswith("/"):
        raise tarfile.AbsoluteLinkError(member)
    tarfile.data_filter(member, path)
    return member
