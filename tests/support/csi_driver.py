"""Runs the example directory driver as a process that a test can start, kill, watch and disturb.

```
with DirectoryDriver() as driver:            # started and ready
    driver.set_rules({"method": "CreateVolume", "delay_seconds": 2, "times": 1})
    ... use driver.address ...
    driver.kill(); driver.start()            # same root, same socket
    assert [call.code for call in driver.calls("CreateVolume")] == ["OK"]
```
Rules are those of `examples/directory_driver/behaviour.py`. They hold from the next call on.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from google.protobuf.message import Message

from csi_client import messages as csi
from csi_client.client import CsiClient
from csi_client.connection import TlsFiles
from csi_client.errors import CsiError
from tests.support.processes import Process, start_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


def create_request(name: str) -> csi.CreateVolumeRequest:
    """Return the minimal requirements of a driver's volume: a file system for one node."""
    return csi.CreateVolumeRequest(
        name=name,
        volume_capabilities=[
            csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(),
                access_mode=csi.VolumeCapability.AccessMode(
                    mode=csi.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
                ),
            )
        ],
    )


@dataclass(frozen=True, slots=True)
class DriverCall:
    """One call as the driver recorded it; `ended_at` and `code` are None while it has not ended."""

    call: str
    method: str
    started_at: float
    volumes: tuple[str, ...]
    request: Mapping[str, Any]
    secrets_arrived: bool
    secrets_sha256: str | None
    overlaps: Sequence[Mapping[str, Any]]
    ended_at: float | None = None
    code: str | None = None
    message: str = ""
    answer: Mapping[str, Any] = field(default_factory=dict)
    client_waits: bool | None = None


class DirectoryDriver:
    """One driver process at a time, always with the same root folder and the same address.

    Args:
        name: driver name; the default is unique.
        root: volumes and records; default a new folder that `close` removes.
        arguments: further flags of `python -m examples.directory_driver`.
        is_strict: another request under a known name is ALREADY_EXISTS, as CSI allows.
        endpoint: default a unix socket below a short temporary folder (107 bytes is the limit of
            a socket's path, and pytest's tmp_path may exceed it); else `tcp://127.0.0.1:<port>`.
        tls: client side files, for `wait_ready` over TCP.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        root: Path | None = None,
        arguments: Sequence[str] = (),
        endpoint: str | None = None,
        tls: TlsFiles | None = None,
        is_strict: bool = True,
    ) -> None:
        self.name = name or f"dir-{uuid.uuid4().hex[:8]}.csi.example.org"
        self._folder = Path(tempfile.mkdtemp(prefix="csi-"))
        self.root = root or self._folder / "root"
        self.root.mkdir(parents=True, exist_ok=True)
        self.socket = self._folder / "s"
        self.endpoint = endpoint or f"unix://{self.socket}"
        self.arguments = [*arguments, *["--strict"] * is_strict]
        self.tls = tls
        self._process: Process | None = None
        self._control: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Return the address for `CsiClient`: the socket's path, or host:port."""
        return self.endpoint.removeprefix("unix://").removeprefix("tcp://")

    @property
    def pid(self) -> int:
        """Return the process id of the running driver."""
        assert self._process is not None, "the driver is not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return True if the process is alive."""
        return self._process is not None and self._process.is_running()

    def client(self, **options: Any) -> CsiClient:
        """Return a new client of this driver; the caller closes it."""
        if self.endpoint.startswith("tcp:"):
            options.setdefault("allow_tcp", True)
            options.setdefault("tls", self.tls)
        return CsiClient(self.address, **options)

    def start(self, *, wait: bool = True) -> Self:
        """Start the process; with `wait`, return when it answers Probe with any status."""
        assert not self.is_running, "already running"
        self._process = start_process(
            "directory-driver",
            [
                *(sys.executable, "-m", "examples.directory_driver"),
                *("--endpoint", self.endpoint, "--root", str(self.root), "--name", self.name),
                *self.arguments,
            ],
            log=self._folder / "driver.log",
            cwd=ROOT,
        )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_seconds: float = 20) -> None:
        """Wait until the process answers calls, whatever its rules say about Probe.

        Raises:
            RuntimeError: the process ended instead; with the last lines it printed.
            TimeoutError: no answer within the time.
        """
        client = self.client(timeout_seconds=2.0)
        try:
            wait_until(
                lambda: not self.is_running or _answers(client),
                timeout_seconds,
                f"driver {self.name} answers",
            )
        finally:
            client.close()
        if not self.is_running:
            log = self._process.log_tail() if self._process else ""
            raise RuntimeError(f"driver {self.name} ended: {log}")

    def stop(self) -> None:
        """Send SIGTERM and wait; the root folder and its records remain."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """Send SIGKILL and wait; the root folder, its records and the dead socket file remain."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill the process and remove the files that this object created."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_rules(self, *rules: Mapping[str, Any]) -> None:
        """Replace all rules and restart their counters; without rules, the driver behaves
        normally."""
        self._control["rules"] = [dict(rule) for rule in rules]
        self._write_control()

    def set_capacity(self, **sizes: Any) -> None:
        """Set `total_bytes`, `maximum_volume_size`, `segments` ({"zone=z1": bytes})."""
        self._control["capacity"] = sizes
        self._write_control()

    def answer_with(self, method: str, answer: Message | bytes, **rule: Any) -> None:
        """Let `method` return exactly this message, or these bytes; replaces all rules."""
        data = answer if isinstance(answer, bytes) else answer.SerializeToString()
        encoded = base64.b64encode(data).decode()
        self.set_rules({"method": method, "answer_base64": encoded, **rule})

    def calls(self, method: str | None = None) -> list[DriverCall]:
        """Return all calls since the first start, in the order of their start, including
        unfinished ones."""
        found: dict[str, dict[str, Any]] = {}
        for record in self._records():
            if record["event"] == "start":
                found[record["call"]] = {
                    "call": record["call"],
                    "method": record["method"],
                    "started_at": record["time"],
                    "volumes": tuple(record["volumes"]),
                    "request": record["request"],
                    "secrets_arrived": record["secrets_arrived"],
                    "secrets_sha256": record.get("secrets_sha256"),
                    "overlaps": record["overlaps"],
                }
            else:
                found[record["call"]] |= {
                    "ended_at": record["time"],
                    **{key: record[key] for key in ("code", "message", "answer", "client_waits")},
                }
        return [DriverCall(**c) for c in found.values() if method in {None, c["method"]}]

    def concurrent_calls(self) -> list[DriverCall]:
        """Return the calls that arrived during another call for the same volume, which breaks
        single flight.

        A call does not count if the client of the earlier call had already given up.
        """
        return [c for c in self.calls() if any(o["waited_for"] for o in c.overlaps)]

    def volumes(self) -> dict[str, dict[str, Any]]:
        """Return the volumes on disk by id, even if the driver is dead."""
        return {
            path.parent.name: json.loads(path.read_text())
            for path in (self.root / "volumes").glob("[!.]*/metadata.json")
        }

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """Return the snapshots on disk by id."""
        found = {}
        for path in (self.root / "snapshots").glob("[!.]*/metadata.json"):
            with suppress(FileNotFoundError):  # deleted meanwhile
                found[path.parent.name] = json.loads(path.read_text())
        return found

    def journal_text(self) -> str:
        """Return the raw record of all calls, to search it for forbidden content."""
        path = self.root / "calls.jsonl"
        return path.read_text() if path.exists() else ""

    def _records(self) -> list[dict[str, Any]]:
        # A line without a newline is still being written.
        lines = self.journal_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def _write_control(self) -> None:
        self._control["generation"] = uuid.uuid4().hex
        draft = self.root / "control.draft"
        draft.write_text(json.dumps(self._control))
        draft.replace(self.root / "control.json")


def _answers(client: CsiClient) -> bool:
    try:
        client.plugin_info()
    except CsiError as error:
        return error.code_name not in {"Unavailable", "DeadlineExceeded"}
    return True
