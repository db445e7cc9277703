"""Copies, packs and unpacks directories (NF-050 to NF-055).

A tenant may change the content while this process, as root, reads it. So every name is opened
relative to its directory, without following links and without blocking on a pipe, and is read only
if the opened descriptor is a regular file. Pipes, sockets and devices are left out.
"""

from __future__ import annotations

import logging
import os
import stat
import tarfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from examples.nfs_csi_driver.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_log = logging.getLogger(__name__)

PACKED: Final = (".tar.gz", ".tar")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK: Final = 1 << 20


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree with links, modes, times, holes and, as root, owners."""
    target.mkdir()
    with _opened(str(source)) as directory:
        _copy_directory(directory, target)


def _copy_directory(directory: int, target: Path) -> None:
    for name, found in _entries(directory):
        place = target / name
        if stat.S_ISLNK(found.st_mode):
            place.symlink_to(os.readlink(name, dir_fd=directory))
            _keep(found, place)
            continue
        with _opened(name, directory) as child:
            status = os.fstat(child)
            if stat.S_ISDIR(status.st_mode):
                place.mkdir()
                _copy_directory(child, place)
            elif stat.S_ISREG(status.st_mode):
                _copy_file(child, status.st_size, place)
    _keep(os.fstat(directory), target)


def _entries(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files, directories and links; entries that change during this may be missing."""
    for name in sorted(os.listdir(directory)):
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if (
            stat.S_ISREG(found.st_mode)
            or stat.S_ISDIR(found.st_mode)
            or stat.S_ISLNK(found.st_mode)
        ):
            yield name, found
        else:
            _log.warning("%s is neither file, directory nor link and is left out", name)


@contextmanager
def _opened(name: str, directory: int | None = None) -> Iterator[int]:
    """Open a name whose type may have changed; fails if it is now a link."""
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_file(reader: int, size: int, target: Path) -> None:
    """Copy one file; holes stay holes."""
    with target.open("xb") as writer:
        at = 0
        while at < size:
            try:
                start = os.lseek(reader, at, os.SEEK_DATA)
            except OSError:  # the rest of the file is a hole
                break
            end = min(os.lseek(reader, start, os.SEEK_HOLE), size)
            os.lseek(reader, start, os.SEEK_SET)
            writer.seek(start)
            while start < end and (block := os.read(reader, min(end - start, _BLOCK))):
                writer.write(block)
                start += len(block)
            at = end
        writer.truncate(size)
    _keep(os.fstat(reader), target)


def _keep(status: os.stat_result, path: Path) -> None:
    """Set owner (as root), then mode, which a change of owner may reset, then times."""
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        path.chmod(stat.S_IMODE(status.st_mode))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def tree_size(path: Path) -> int:
    """Return the bytes of all files."""
    total = 0
    for _, _, names, directory in os.fwalk(path):
        for name in names:
            try:
                total += os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
    return total


def pack(source: Path, archive: Path, *, compress: bool) -> None:
    """Write the archive, completely or not at all (NF-051)."""
    draft = archive.with_name(f".draft-{archive.name}")
    with draft.open("wb") as file:
        with (
            tarfile.open(fileobj=file, mode="w:gz" if compress else "w") as tar,
            _opened(str(source)) as directory,
        ):
            _pack_directory(tar, directory, ".")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(archive)


def _pack_directory(tar: tarfile.TarFile, directory: int, path: str) -> None:
    tar.addfile(_member(path, os.fstat(directory), tarfile.DIRTYPE))
    for name, found in _entries(directory):
        inside = f"{path}/{name}"
        if stat.S_ISLNK(found.st_mode):
            member = _member(inside, found, tarfile.SYMTYPE)
            member.linkname = os.readlink(name, dir_fd=directory)
            tar.addfile(member)
            continue
        with _opened(name, directory) as child:
            status = os.fstat(child)
            if stat.S_ISDIR(status.st_mode):
                _pack_directory(tar, child, inside)
            elif stat.S_ISREG(status.st_mode):
                member = _member(inside, status, tarfile.REGTYPE)
                member.size = status.st_size
                with os.fdopen(os.dup(child), "rb") as file:
                    tar.addfile(member, file)


def _member(path: str, status: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type, member.mode = kind, stat.S_IMODE(status.st_mode)
    member.uid, member.gid, member.mtime = status.st_uid, status.st_gid, status.st_mtime
    return member


def unpack(archive: Path, target: Path, *, any_link: bool = False) -> None:
    """Unpack below the target and nowhere else (NF-054).

    With `any_link`, for archives of this driver, links may point anywhere, as in the original
    volume. They are created but never followed: tarfile checks the real path of each member.

    Raises:
        RpcError: INTERNAL; a member is a device or would be outside the target.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter=_any_link if any_link else _checked, numeric_owner=True)
    except (tarfile.TarError, OSError) as error:
        raise RpcError("INTERNAL", f"archive is not usable: {error}") from error


def _checked(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """Apply tarfile's checks, but keep modes and owners."""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise tarfile.OutsideDestinationError(member, member.name)
    if member.issym() and member.linkname.startswith("/"):
        raise tarfile.AbsoluteLinkError(member)
    tarfile.data_filter(member, path)
    return member


def _any_link(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    _checked(member.replace(linkname=".", deep=False) if member.issym() else member, path)
    return member
