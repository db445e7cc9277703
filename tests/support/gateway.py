"""Runs the gateway of a driver as its container does: the shipped script with a real haproxy.

```
with Gateway(folder, driver.address) as gateway:
    client = CsiClient(gateway.endpoint, allow_tcp=True, tls=gateway.client_files())
```
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Self

from csi_client.connection import TlsFiles
from tests.support import apt
from tests.support.fleet import environment
from tests.support.processes import Process, free_port, start_process
from tests.support.waiting import wait_until
from workers.cli import certificates, gateway

HOST = "csi-fleet-driver.vendor.svc"
# The script checks the certificates every 10 s, and waits a second for a new haproxy.
SEEN_SECONDS = 20


def install() -> None:
    """Install Debian's haproxy, which the image contains too."""
    if shutil.which("haproxy") is None:
        apt.install("haproxy")


class Gateway:
    """One gateway container in front of a unix socket; the certificates are files in `folder`."""

    def __init__(self, folder: Path, socket: str) -> None:
        install()
        self.folder, self.port = folder, free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self.process: Process | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.authority, self._key = certificates.make_authority("drivers")
        (folder / "ca.crt").write_bytes(self.authority)
        self.renew()
        self._write("client", *self.sign("worker", certificates.CLIENT))
        path = socket.removeprefix("unix://")
        self.container = gateway.container("csi-fleet", "", path, self.port, [])

    def sign(self, name: str, use: object) -> tuple[bytes, bytes]:
        """Create a certificate and its key, signed by the gateway's authority."""
        return certificates.sign(self.authority, self._key, [name], use)  # type: ignore[arg-type]

    def renew(self) -> None:
        """Replace the certificate by another one for the same name."""
        self._write("tls", *self.sign(HOST, certificates.SERVER))

    def spoil(self) -> None:
        """Replace the certificate by a file that cannot be read."""
        (self.folder / "tls.crt").write_bytes(b"no certificate")

    def client_files(self, name: str = "client") -> TlsFiles:
        """Return the TLS files of a worker."""
        folder = self.folder
        return TlsFiles(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key", HOST)

    def entry(self, driver: str) -> dict[str, object]:
        """Return the TLS settings for the drivers file."""
        files = {"ca": "ca.crt", "certificate": "client.crt", "key": "client.key"}
        tls = {name: str(self.folder / file) for name, file in files.items()}
        return {"name": driver, "endpoint": self.endpoint, "tls": tls | {"serverName": HOST}}

    def start(self) -> Self:
        """Start the container, also after it has ended, as kubelet would."""
        values = {one["name"]: one.get("value", "127.0.0.1") for one in self.container["env"]}
        self.process = start_process(
            "gateway",
            [self._here(one) for one in self.container["command"]],
            log=self.folder / "gateway.log",
            env=environment(**{name: self._here(value) for name, value in values.items()}),
        )
        wait_until(self.proxies, 10, "haproxy runs", fatal=RuntimeError)
        return self

    def proxies(self) -> list[int]:
        """Return the process ids of haproxy: one, or two while certificates change."""
        assert self.process is not None
        if not self.process.is_running():
            raise RuntimeError(self.process.log_tail(30))
        found = []
        for one in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = one.read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            state, parent = rest.split()[:2]
            if (name, parent) == ("haproxy", str(self.process.pid)) and state != "Z":
                found.append(int(one.parent.name))
        return sorted(found)

    def freeze(self) -> None:
        """Let no byte pass any more, but keep the connections open."""
        for pid in self.proxies():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let bytes pass again."""
        for pid in self.proxies():
            os.kill(pid, signal.SIGCONT)

    def crash(self) -> None:
        """Kill the container's haproxy; the container then ends by itself."""
        for pid in self.proxies():
            os.kill(pid, signal.SIGKILL)
        process = self.process
        assert process is not None
        wait_until(lambda: not process.is_running(), SEEN_SECONDS, "the container ends")

    def stop(self) -> None:
        """Stop the container as kubelet does when it ends a pod."""
        if self.process is not None:
            self.process.stop(10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _here(self, text: str) -> str:
        return text.replace(gateway.FOLDER, str(self.folder))

    def _write(self, name: str, certificate: bytes, key: bytes) -> None:
        for ending, content in (("key", key), ("crt", certificate)):
            draft = self.folder / f".{name}.{ending}"
            draft.write_bytes(content)
            draft.replace(self.folder / f"{name}.{ending}")
