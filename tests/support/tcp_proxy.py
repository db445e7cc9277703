"""A TCP proxy in this process, whose target can change and whose connections can fall silent."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class TcpProxy:
    """Listens on loopback and forwards to `target`, a port of loopback.

    Attributes:
        target: of connections made from now on.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> int:
        """Let the present connections drop what is sent, without closing; return their count."""
        self._silent |= {end for pair in self._pairs for end in pair}
        return len(self._pairs)

    def close(self) -> None:
        """Stop the proxy and close all its connections."""
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self._pairs.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silent:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
