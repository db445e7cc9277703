"""Mounts exports for the controller, and volumes at pods' targets (NF-003).

- `nfs`: mount(8) and umount(8); the controller mounts the share for each operation.
- `bind`: `server:path` is a directory below a root, bind-mounted; needs privileges, but no server.
- `fake`: the same directories, and a table of files instead of mounts; needs nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from examples.nfs_csi_driver.errors import RpcError, invalid
from examples.nfs_csi_driver.parameters import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

MOUNTINFO = Path("/proc/self/mountinfo")
KILL_SECONDS = 2.0
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount at a target."""

    source: str
    target: str
    is_read_only: bool


def source_of(server: str, path: str) -> str:
    """Return `server:path` for mount(8), with brackets around an IPv6 address."""
    host = f"[{server}]" if ":" in server and not server.startswith("[") else server
    return f"{host}:/{path.strip('/')}"


class Mounter(Protocol):
    """Interface of the three mounters."""

    def opened(
        self, server: str, share: str, options: Sequence[str]
    ) -> AbstractContextManager[Path]:
        """Give a directory with the share's content during the context."""

    def mount(self, server: str, path: str, target: Path, options: Sequence[str]) -> None:
        """Mounts at an existing empty directory."""

    def unmount(self, target: Path) -> None:
        """Removes one mount from the target."""

    def mounts(self) -> list[Mount]:
        """All mounts, oldest first."""

    def is_usable(self) -> bool:
        """Return True if the helper programs are installed (NF-010)."""


class FakeMounter:
    """Uses directories below `root`, and a table of files instead of mounts."""

    def __init__(self, root: Path) -> None:
        self._exports = root / "exports"
        self._table = root / "mounts"
        self._table.mkdir(parents=True, exist_ok=True)

    def place(self, server: str, path: str) -> Path:
        """Return the directory of `server:path`."""
        return self._exports / server.strip("[]") / path.strip("/")

    @contextmanager
    def opened(self, server: str, share: str, options: Sequence[str]) -> Iterator[Path]:
        """Give the directory itself; creates it if it is missing."""
        del options
        place = self.place(server, share)
        place.mkdir(parents=True, exist_ok=True)
        yield place

    def mount(self, server: str, path: str, target: Path, options: Sequence[str]) -> None:
        """Adds the mount to the table."""
        if not self.place(server, path).is_dir():
            raise RpcError("NOT_FOUND", f"{source_of(server, path)}: No such file or directory")
        number = len(self._files(target))
        mount = Mount(source_of(server, path), str(target), "ro" in options)
        (self._table / f"{digest(str(target))}.{number:03}").write_text(json.dumps(asdict(mount)))

    def unmount(self, target: Path) -> None:
        """Removes the target's newest mount from the table."""
        self._files(target)[-1].unlink()

    def mounts(self) -> list[Mount]:
        """Returns the table."""
        files = sorted(self._table.iterdir())
        return [Mount(**json.loads(file.read_text())) for file in files]

    def is_usable(self) -> bool:
        """Returns True: no program is needed."""
        return True

    def _files(self, target: Path) -> list[Path]:
        return sorted(self._table.glob(f"{digest(str(target))}.*"))


class CommandMounter:
    """mount(8) and umount(8) under a time limit (NF-041).

    Args:
        work: folder for the controller's own mounts.
        bind_root: root whose directories are bind-mounted as `server:path`; None mounts NFS.
        timeout_seconds: time after which the helper's process group is killed.
    """

    def __init__(self, work: Path, bind_root: Path | None, timeout_seconds: float) -> None:
        self._work = work
        self._bind_root = bind_root
        self._timeout = timeout_seconds
        self._stuck: dict[str, subprocess.Popen[str]] = {}
        self._lock = threading.Lock()
        work.mkdir(parents=True, exist_ok=True)
        self.clean_up()

    def clean_up(self) -> None:
        """Removes mounts that dead processes left below the work folder (NF-082)."""
        for mount in reversed(self.mounts()):
            if Path(mount.target).parent == self._work:
                self.unmount(Path(mount.target))
        for leftover in self._work.iterdir():
            if leftover.is_dir():
                leftover.rmdir()

    @contextmanager
    def opened(self, server: str, share: str, options: Sequence[str]) -> Iterator[Path]:
        """Mount the share for one operation."""
        directory = Path(tempfile.mkdtemp(prefix="op-", dir=self._work))
        try:
            self.mount(server, share, directory, options)
            try:
                yield directory
            finally:
                self.unmount(directory)
        finally:
            directory.rmdir()  # not rmtree: if the unmount failed, the share must not be deleted

    def mount(self, server: str, path: str, target: Path, options: Sequence[str]) -> None:
        """Mounts with one command, or with two for a read-only bind mount."""
        if self._bind_root is None:
            given = ["-o", ",".join(options)] if options else []
            source = source_of(server, path)
            self._run(target, "mount", "-t", "nfs", *given, source, str(target))
            return
        place = self._bind_root / server.strip("[]") / path.strip("/")
        self._run(target, "mount", "--bind", str(place), str(target))
        if "ro" in options:
            self._run(target, "mount", "-o", "remount,bind,ro", str(target))

    def unmount(self, target: Path) -> None:
        """Unmounts normally, else forced, else lazily if the server is away (NF-043)."""
        try:
            self._run(target, "umount", str(target), limit=min(30.0, self._timeout))
        except RpcError as error:
            if error.code != "DEADLINE_EXCEEDED":
                raise
            self._run(target, "umount", "-f", "-l", str(target))

    def mounts(self) -> list[Mount]:
        """Reads the kernel's mount table; a stat of a mount could hang (NF-042)."""
        found = []
        for line in MOUNTINFO.read_text().splitlines():
            left, _, right = line.partition(" - ")
            fields, tail = left.split(), right.split()
            is_bind = self._bind_root is not None
            source = _unescape(fields[3] if is_bind else tail[1])
            read_only = "ro" in fields[5].split(",")
            found.append(Mount(self._shown(source), _unescape(fields[4]), read_only))
        return found

    def is_usable(self) -> bool:
        """Returns True if mount(8) is installed, and for NFS its helper too."""
        names = ["mount"] if self._bind_root else ["mount", "mount.nfs"]
        path = os.pathsep.join((os.environ.get("PATH", ""), "/sbin", "/usr/sbin"))
        return all(shutil.which(name, path=path) for name in names)

    def _shown(self, source: str) -> str:
        """Return `server:path` for a bind mount's directory."""
        if self._bind_root is None:
            return source
        server, _, path = source.removeprefix(f"{self._bind_root}/").partition("/")
        is_ours = source.startswith(f"{self._bind_root}/")
        return source_of(server, path) if is_ours else source

    def _run(self, target: Path, *command: str, limit: float | None = None) -> None:
        with self._lock:
            stuck = self._stuck.get(str(target))
            if stuck is not None and stuck.poll() is None:
                raise RpcError("ABORTED", f"an earlier {stuck.args!r} still hangs")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit or self._timeout)
        except subprocess.TimeoutExpired:
            self._kill(target, process)
            raise RpcError("DEADLINE_EXCEEDED", f"{command[0]} took too long") from None
        if process.returncode:
            raise _classified(command[0], output.strip())

    def _kill(self, target: Path, process: subprocess.Popen[str]) -> None:
        """Kill the helper's process group; if it is stuck in the kernel, its target is refused."""
        os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            with self._lock:
                self._stuck[str(target)] = process


def _classified(command: str, output: str) -> RpcError:
    """Return the error for the helper's output (NF-041)."""
    text = f"{command} failed: {output}"
    lower = output.lower()
    if "permission denied" in lower or "access denied" in lower:
        return RpcError("PERMISSION_DENIED", text)
    if "no such file or directory" in lower or "does not exist" in lower:
        return RpcError("NOT_FOUND", text)
    if "invalid argument" in lower:
        return invalid(text)
    if any(word in lower for word in ("no route", "refused", "unreachable", "timed out")):
        return RpcError("UNAVAILABLE", text)
    return RpcError("INTERNAL", text)


def _unescape(text: str) -> str:
    r"""Decode the escapes of mountinfo, such as \\040 for a blank."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
