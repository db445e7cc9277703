"""Registers a driver with the kubelet of its node, through the kubelet's plugin registration API.

The plugin serves a unix socket in the kubelet's directory, and the kubelet calls the plugin over it
(NR-001, NR-010). The socket is bound under a hidden name, which the kubelet ignores, and is renamed
once it responds. So the kubelet never finds a socket that is not listening yet. And the gRPC
library, which removes the file that it has bound, never removes a successor's socket (NRD-004).
"""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import grpc

from csi_client._generated.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from csi_client.connection import MAX_SOCKET_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLUGIN_TYPE: Final = "CSIPlugin"
SUPPORTED_VERSIONS: Final = ("1.0.0",)
_SERVICE: Final = "pluginregistration.Registration"
_STOP_SECONDS: Final = 1.0
_OWNER_ONLY: Final = 0o077


class RegistrationError(Exception):
    """The socket cannot be served or does not respond; the message explains what failed and why."""


class RegistrationServer:
    """Serves one registration socket.

    Args:
        path: the public path of the socket.
        name: the driver's name.
        endpoint: the path where the kubelet finds the driver's socket; it is not checked.
        on_status: called after each registration with whether it succeeded and the kubelet's error
            message.
    """

    def __init__(
        self, path: Path, name: str, endpoint: str, on_status: Callable[[bool, str], None]
    ) -> None:
        self.path = path
        self._hidden = path.parent / f".r{os.getpid()}"
        self._answer = PluginInfo(
            type=PLUGIN_TYPE, name=name, endpoint=endpoint, supported_versions=SUPPORTED_VERSIONS
        )
        self._on_status = on_status
        self._server: grpc.Server | None = None
        self._identity = (0, 0, 0)

    def start(self) -> None:
        """Serve the socket, then rename it to its public name; this replaces a stale socket.

        The mode of the socket is 0700.

        Raises:
            RegistrationError: the path is too long, another file occupies it, or the directory
                is not writable.
        """
        check_path(self.path)
        check_path(self._hidden)
        _remove_stale(self.path)
        server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers((self._handlers(),))
        # The umask sets the socket's mode at its creation. It applies to the whole process, so it
        # is restored at once.
        previous = os.umask(_OWNER_ONLY)
        try:
            server.add_insecure_port(f"unix:{self._hidden}")
        except RuntimeError:
            raise RegistrationError(f"cannot listen in {self.path.parent}") from None
        finally:
            os.umask(previous)
        server.start()
        try:
            self._hidden.chmod(0o700)
            self._identity = _identity(self._hidden)
            self._hidden.rename(self.path)
        except OSError as error:
            server.stop(None)
            raise RegistrationError(f"cannot offer {self.path}: {error.strerror}") from error
        self._server = server

    def is_in_place(self) -> bool:
        """Return True if the public name still belongs to our socket."""
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    def is_lost(self) -> bool:
        """Return True if our socket is gone, or its name belongs to another process's socket."""
        try:
            return not self.is_in_place() and stat.S_ISSOCK(self.path.lstat().st_mode)
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """Remove the socket if it is still ours, and let open requests finish. Idempotent.

        Raises:
            RegistrationError: the socket cannot be removed.
        """
        server, self._server = self._server, None
        if server is None:
            return
        try:
            if self.is_in_place():
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise RegistrationError(f"cannot remove {self.path}: {error.strerror}") from error
        finally:
            server.stop(_STOP_SECONDS).wait()

    def _handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    lambda _request, _context: self._answer,
                    InfoRequest.FromString,
                    PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify,
                    RegistrationStatus.FromString,
                    RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    def _notify(self, request: Any, _context: Any) -> RegistrationStatusResponse:
        self._on_status(request.plugin_registered, request.error)
        return RegistrationStatusResponse()


def ask(path: Path, timeout_seconds: float) -> PluginInfo:
    """Call GetInfo as the kubelet does, over a new connection (NR-040).

    Raises:
        RegistrationError: no response arrived in time, or the call failed; the message is gRPC's.
    """
    channel = grpc.insecure_channel(
        f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),)
    )
    try:
        call = channel.unary_unary(
            f"/{_SERVICE}/GetInfo", InfoRequest.SerializeToString, PluginInfo.FromString
        )
        answer: PluginInfo = call(InfoRequest(), timeout=timeout_seconds)
    except grpc.RpcError as error:
        code: Any = error
        raise RegistrationError(f"{code.code().name}: {code.details()}") from None
    finally:
        channel.close()
    return answer


def check_path(path: Path) -> None:
    """Check that a unix socket can have this path.

    Raises:
        RegistrationError: the path is too long.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise RegistrationError(
            f"socket path {path} is longer than {MAX_SOCKET_PATH_BYTES} bytes; choose a shorter "
            "--plugin-registration-path"
        )


def _remove_stale(path: Path) -> None:
    """Remove a socket that an earlier process left; any other file is an error (NR-013)."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISSOCK(mode):
            raise RegistrationError(f"{path} exists and is not a socket; remove it")
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise RegistrationError(f"cannot check {path}: {error.strerror}") from error


def _identity(path: Path) -> tuple[int, int, int]:
    """Return the device, inode and mtime of a file.

    The mtime is needed because inode numbers are soon reused.
    """
    found = path.lstat()
    return found.st_dev, found.st_ino, found.st_mtime_ns
