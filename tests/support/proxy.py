"""A TCP proxy on loopback that can drop, delay or cut the data that passes through it.

```
with Proxy("127.0.0.1", 6379) as proxy:      # connect to 127.0.0.1:proxy.port
    proxy.swallow(10)    # half-open: data is lost without an error; later these connections break
    proxy.hold(3)        # what clients send meanwhile arrives late, in order
    proxy.hold(3, answers=True)              # what the server sends, too
    proxy.cut()          # every connection is closed
    proxy.fall_silent()  # current connections stay open but deliver nothing
```
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml

from tests.support.processes import free_port
from tests.support.running import Running

_CHUNK = 65536


class Proxy(Running):
    """One listener in front of one server."""

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self._target = (host, port)
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._swallowed_until = 0.0
        self._silent: set[tuple[socket.socket, socket.socket]] = set()
        self._held_until = {True: 0.0, False: 0.0}  # the key is True for requests
        self._ended = threading.Event()

    def start(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def swallow(self, seconds: float) -> None:
        """Let current and new connections go dead for a while, without an error; they break
        afterwards."""
        self._swallowed_until = time.monotonic() + seconds

    def hold(self, seconds: float, *, answers: bool = False) -> None:
        """Delay what clients (with `answers`: the server) send now until the time is over."""
        self._held_until[not answers] = time.monotonic() + seconds

    def fall_silent(self) -> None:
        """Let current connections go dead until their client closes them."""
        with self._lock:
            self._silent |= self._pairs

    def heal(self) -> None:
        """End all disturbances of new connections."""
        self._swallowed_until = 0.0
        self._held_until = {True: 0.0, False: 0.0}

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._close(pair)

    def stop(self) -> None:
        self._ended.set()
        if self._listener is not None:
            # Otherwise the thread that waits in accept would accept one more connection.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, timeout=5)
        except OSError:
            near.close()  # the server's port is closed, and the client must notice that too
            return
        far.settimeout(None)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (near, far)
        with self._lock:
            self._pairs.add(pair)
        back = threading.Thread(target=self._pump, args=(pair,), daemon=True)
        back.start()
        self._pump(pair, is_request=True)

    def _pump(self, pair: tuple[socket.socket, socket.socket], *, is_request: bool = False) -> None:
        """Copy one direction; after a part of a stream is lost, the rest is useless."""
        source, sink = pair if is_request else reversed(pair)
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if time.monotonic() < self._swallowed_until:
                    self._wait_for(lambda: self._swallowed_until)
                    break
                self._wait_for(lambda: self._held_until[is_request])
                if pair in self._silent:
                    continue
                sink.sendall(data)
        self._close(pair)

    def _wait_for(self, until: Callable[[], float]) -> None:
        while (left := until() - time.monotonic()) > 0 and not self._ended.wait(min(left, 0.05)):
            pass

    def _close(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
            self._silent.discard(pair)
        for one in pair:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def kubeconfig_through(kubeconfig: Path, path: Path) -> Proxy:
    """Start a proxy in front of the API server, and write a kubeconfig that leads to it at
    `path`."""
    config = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    proxy = Proxy(server.hostname or "", server.port or 443).start()
    for cluster in config["clusters"]:
        cluster["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path.write_text(yaml.safe_dump(config))
    return proxy
