"""A proxy for an API server that delays lists of chosen kinds and forwards everything else.

```
with SlowLists(plane.directory, port, path) as proxy:    # a kubeconfig at `path` leads through it
    proxy.hold("volumeattachments", 8)   # lists of them that come within 8 s are asked after that
```
It shows the API server's own certificate, so that clients see no difference.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

import yaml

from tests.support.processes import free_port
from tests.support.running import Running
from tests.support.waiting import let_pass

_CHUNK = 65536


class SlowLists(Running):
    """One listener in front of one API server, for HTTP/1.1 only.

    Args:
        plane: the control plane's folder, which contains its certificate.
        target: the port of the API server on loopback.
        kubeconfig: a kubeconfig for the API server, which is rewritten to name the proxy.
    """

    def __init__(self, plane: Path, target: int, kubeconfig: Path) -> None:
        self.port, self._target = free_port(), target
        certificate, key = (plane / "certs" / f"apiserver.{one}" for one in ("crt", "key"))
        self._near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._near.load_cert_chain(certificate, key)
        self._far = ssl.create_default_context(cafile=str(certificate))
        self._held: dict[str, float] = {}
        self._listener: socket.socket | None = None
        config = yaml.safe_load(kubeconfig.read_text())
        for cluster in config["clusters"]:
            cluster["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        kubeconfig.write_text(yaml.safe_dump(config))

    def start(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def hold(self, resource: str, seconds: float) -> None:
        """Delay lists of the resource (a plural) until the time is over."""
        self._held[resource] = time.monotonic() + seconds

    def stop(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        """Serve one connection: request and answer in turn, so no two threads use one socket."""
        with suppress(OSError, ValueError), plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with (
                self._near.wrap_socket(plain, server_side=True) as near,
                socket.create_connection(("127.0.0.1", self._target), timeout=10) as raw,
                self._far.wrap_socket(raw, server_hostname="127.0.0.1") as far,
                near.makefile("rb") as asked,
                far.makefile("rb") as answered,
            ):
                far.settimeout(None)
                while head := _head(asked):
                    self._wait(head[0].decode())
                    far.sendall(b"".join(head) + asked.read(_length(head)))
                    _answer(answered, near, is_head=head[0].startswith(b"HEAD "))

    def _wait(self, line: str) -> None:
        verb, target, _ = line.split(" ", 2)
        path, _, query = target.partition("?")
        if verb == "GET" and "watch=" not in query:
            left = self._held.get(path.rpartition("/")[2], 0.0) - time.monotonic()
            if left > 0:
                let_pass(left)


def _head(source: BinaryIO) -> list[bytes]:
    """Return the lines up to the empty line; none at the end of the connection."""
    lines = []
    while line := source.readline():
        lines.append(line)
        if line == b"\r\n":
            return lines
    return []


def _field(head: list[bytes], name: bytes) -> bytes:
    for line in head[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


def _length(head: list[bytes]) -> int:
    return int(_field(head, b"content-length") or 0)


def _answer(source: BinaryIO, sink: socket.socket, *, is_head: bool) -> None:
    """Forward one answer as it arrives; the answer to a watch never ends."""
    head = _head(source)
    if not head:
        raise OSError("the API server closed the connection")
    sink.sendall(b"".join(head))
    if is_head or head[0].split()[1] in {b"204", b"304"}:
        return
    if _field(head, b"transfer-encoding") == b"chunked":
        size = -1
        while size:
            line = source.readline()
            size = int(line.partition(b";")[0], 16)
            sink.sendall(line + source.read(size + 2))
        return
    left = _length(head)
    while left:
        data = source.read(min(left, _CHUNK))
        if not data:
            raise OSError("the API server closed the connection")
        sink.sendall(data)
        left -= len(data)
