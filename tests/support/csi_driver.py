"""The example directory driver as a process that tests start, kill, watch and make misbehave.

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
    """Return the least that a driver takes: a file system for one node."""
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
    """One call as the driver saw it. `ended_at` and `code` are None while, or if, it has no end."""

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
    """One driver process at a time over one root and one address.

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
        """The address for `CsiClient`: the socket's path, or host:port."""
        return self.endpoint.removeprefix("unix://").removeprefix("tcp://")

    @property
    def pid(self) -> int:
        """Process id of the running driver."""
        assert self._process is not None, "the driver is not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.is_running()

    def client(self, **options: Any) -> CsiClient:
        """A new client of this driver; the caller closes it."""
        if self.endpoint.startswith("tcp:"):
            options.setdefault("allow_tcp", True)
            options.setdefault("tls", self.tls)
        return CsiClient(self.address, **options)

    def start(self, *, wait: bool = True) -> Self:
        """Start the process; with `wait` return when it answers Probe or any other status."""
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
        """Wait until the process answers calls, whatever its rules make of Probe.

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
        """SIGTERM and wait; the root and its records stay."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL and wait; the root and its records stay, as does the dead socket file."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill the process and remove what this object made on disk."""
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
        """Replace all rules and restart their counters; none means: behave."""
        self._control["rules"] = [dict(rule) for rule in rules]
        self._write_control()

    def set_capacity(self, **sizes: Any) -> None:
        """Set `total_bytes`, `maximum_volume_size`, `segments` ({"zone=z1": bytes})."""
        self._control["capacity"] = sizes
        self._write_control()

    def answer_with(self, method: str, answer: Message | bytes, **rule: Any) -> None:
        """Make `method` answer exactly this message, or these bytes; replaces all rules."""
        data = answer if isinstance(answer, bytes) else answer.SerializeToString()
        encoded = base64.b64encode(data).decode()
        self.set_rules({"method": method, "answer_base64": encoded, **rule})

    def calls(self, method: str | None = None) -> list[DriverCall]:
        """All calls so far in the order of their start, over all restarts; also unfinished ones."""
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
        """Calls that came while another call for the same volume was awaited: single flight broken.

        Overlaps with a call whose client had given up are legitimate and not in the list.
        """
        return [c for c in self.calls() if any(o["waited_for"] for o in c.overlaps)]

    def volumes(self) -> dict[str, dict[str, Any]]:
        """What is on disk, by volume id; works with the driver dead as well."""
        return {
            path.parent.name: json.loads(path.read_text())
            for path in (self.root / "volumes").glob("[!.]*/metadata.json")
        }

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """What is on disk, by snapshot id."""
        found = {}
        for path in (self.root / "snapshots").glob("[!.]*/metadata.json"):
            with suppress(FileNotFoundError):  # deleted meanwhile
                found[path.parent.name] = json.loads(path.read_text())
        return found

    def journal_text(self) -> str:
        """The raw record of all calls, to search it for what must not be there."""
        path = self.root / "calls.jsonl"
        return path.read_text() if path.exists() else ""

    def _records(self) -> list[dict[str, Any]]:
        # A line without its end is being written right now.
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
