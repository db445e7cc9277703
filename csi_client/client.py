"""The client of one CSI driver, with a typed method and a timeout for each call.

Every failure is raised as a `CsiError`, without a gRPC exception as its cause or context: gRPC's
exceptions contain the driver's raw message, which may repeat a secret. Requests are encoded and
responses are decoded here, not by gRPC. So the client can distinguish a request that was never sent
(nothing is left behind) from an unreadable response (a volume may exist).

The client is thread-safe. It never repeats a call.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, EncodeError, Message

from csi_client import answers, capabilities, errors, redact
from csi_client import messages as csi
from csi_client import scrub as scrubbing
from csi_client.connection import (
    MAX_RECEIVE_BYTES,
    Link,
    TlsFiles,
    address_target,
    host_and_port,
    open_channel,
    parse_address,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DEFAULT_TIMEOUT_SECONDS: Final = 10.0
"""The default timeout of a call; the Go sidecar's effective default is the same (P-413, D-007)."""

_log: Final = logging.getLogger(__name__)
_OK: Final = errors.code_name(errors.OK)
_Answer = TypeVar("_Answer", bound=Message)
_Page = TypeVar("_Page", csi.ListVolumesResponse, csi.ListSnapshotsResponse)


def _pages(ask: Callable[[str], _Page], method: str) -> Iterator[_Page]:
    token, seen = "", set[str]()
    while True:
        page = ask(token)
        yield page
        token = page.next_token
        if not token:
            return
        if token in seen:
            raise errors.UndecodableAnswerError(
                "the driver repeats a page token", rpc=f"/csi.v1.Controller/{method}"
            )
        seen.add(token)


# A connection, and the function for calling each method.
_Line = tuple[grpc.Channel, dict[str, "grpc.UnaryUnaryMultiCallable[bytes, bytes]"]]


class CsiClient:
    """The client of the driver at `address`.

    Args:
        address: `/path` or `unix:///path`; with `allow_tcp` also `host:port` or `dns:///host:port`.
        timeout_seconds: the default timeout of a call.
        observer: called after each call with the full method name, the status in Go's spelling
            (`unknown-non-grpc` if there is no status) and the duration in seconds, for the
            metric of P-011.
        allow_tcp: whether to allow TCP (central mode); in the driver's pod only a unix socket
            is used.
        tls: the credentials for TCP; None means plain text.
        max_receive_bytes: the maximum size of a response.
        timeouts_by_rpc: the timeouts by method (`Controller/CreateVolume`); they override
            `timeout_seconds`. A timeout that is passed to a call overrides both.

    Raises:
        CsiAddressError: the address or a TLS file is unusable.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        observer: Callable[[str, str, float], None] | None = None,
        allow_tcp: bool = False,
        tls: TlsFiles | None = None,
        max_receive_bytes: int = MAX_RECEIVE_BYTES,
        timeouts_by_rpc: Mapping[str, float] | None = None,
    ) -> None:
        target = parse_address(address, allow_tcp=allow_tcp)
        self.address = address
        self._name = address  # for error messages; replaced by the driver's name once it is known
        self.timeout_seconds = timeout_seconds
        self._timeouts_by_rpc = dict(timeouts_by_rpc or {})
        self._observer = observer
        self.is_tcp = target.startswith("dns:")
        self.answered_at = float("-inf")
        self._open = partial(
            open_channel, target=target, tls=tls, max_receive_bytes=max_receive_bytes
        )
        self._target = target
        self._line: _Line = (self._open(), {})
        self._mending = threading.Lock()
        self._link = Link(self._line[0])
        self._guarded: dict[grpc.Future[bytes], Callable[[], bool]] = {}

    @property
    def is_connected(self) -> bool:
        """Return True if the driver's socket is connected; False right after construction.

        A background thread establishes and repairs the connection, even if no calls are made.
        """
        return self._link.is_connected

    @property
    def connection_losses(self) -> int:
        """Return the number of lost connections.

        If the number has grown, the caller must repeat the handshake (P-003).
        """
        return self._link.losses

    def wait_connected(
        self,
        timeout_seconds: float = 30.0,
        on_wait: Callable[[], None] | None = None,
        *,
        wait_every_seconds: float = 10.0,
    ) -> bool:
        """Wait for the connection until the timeout; `on_wait` logs `Still connecting` (P-002)."""
        return self._link.wait(timeout_seconds, on_wait, wait_every_seconds=wait_every_seconds)

    def recheck(self) -> None:
        """Cancel the open calls whose `is_allowed` now returns False; they end with CANCELLED."""
        for call, is_allowed in self._guarded.copy().items():
            if not is_allowed():
                call.cancel()

    def close(self) -> None:
        """Close the channel; open calls end with CANCELLED. Idempotent."""
        self._link.close()
        self._line[0].close()

    def mend(self, timeout_seconds: float = 5.0) -> bool:
        """Replace a connection that loses everything sent over it; return True if it was replaced.

        Probe gets no response over such a connection, but gets one over a second connection to the
        same address. If the driver itself hangs, it responds over neither, and the first connection
        and its open calls are kept. When a connection is replaced, its calls are cancelled. This
        blocks for at most twice `timeout_seconds`.
        """
        with self._mending:
            old = self._line[0]
            if self._answers(old, timeout_seconds):
                return False
            fresh = self._open()
            if not self._answers(fresh, timeout_seconds):
                fresh.close()
                return False
            self._replace(fresh)
            return True

    def move(self, address: str) -> None:
        """Connect to this IP address of the driver's host; the old connection counts as lost.

        Open calls end with CANCELLED.

        Raises:
            CsiAddressError: a TLS file cannot be read.
        """
        host, port = host_and_port(self._target)
        with self._mending:
            self._open = partial(self._open, target=address_target(address, port), host=host)
            self._replace(self._open())

    def _replace(self, fresh: grpc.Channel) -> None:
        old, old_link = self._line[0], self._link
        self._link = Link(fresh, losses=old_link.losses + 1)
        self._line = (fresh, {})
        self._link.look()
        old_link.close()
        old.close()

    def _answers(self, channel: grpc.Channel, timeout_seconds: float) -> bool:
        """Return True if Probe gets any response over this channel, even an error."""
        ask = channel.unary_unary("/csi.v1.Identity/Probe", None, None)
        try:
            ask(b"", timeout=timeout_seconds, wait_for_ready=True)
        except grpc.RpcError as error:
            code = cast("grpc.Call", error).code()
            if code in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}:
                return False
        except ValueError:
            return True  # the channel is closed: there is nothing to repair
        self.answered_at = time.monotonic()
        return True

    def probe(self, *, timeout_seconds: float | None = None) -> bool:
        """Ask the driver once whether it is ready; an absent `ready` means yes (P-004)."""
        answer = self._call(
            "Identity/Probe", csi.ProbeRequest(), csi.ProbeResponse, timeout_seconds
        )
        return answer.ready.value if answer.HasField("ready") else True

    def plugin_info(self, *, timeout_seconds: float | None = None) -> tuple[str, str]:
        """Return the driver's name and its vendor version.

        Raises:
            NoStatusError: the name is empty; the message is `driver name is empty` (P-005).
        """
        answer = self._call(
            "Identity/GetPluginInfo",
            csi.GetPluginInfoRequest(),
            csi.GetPluginInfoResponse,
            timeout_seconds,
        )
        if not answer.name:
            raise errors.NoStatusError("driver name is empty", rpc="/csi.v1.Identity/GetPluginInfo")
        self._name = answer.name
        return answer.name, answer.vendor_version

    def plugin_capabilities(self, *, timeout_seconds: float | None = None) -> frozenset[str]:
        """Return the plugin's service capabilities as enum value names (P-006)."""
        return capabilities.plugin_capabilities(
            self._call(
                "Identity/GetPluginCapabilities",
                csi.GetPluginCapabilitiesRequest(),
                csi.GetPluginCapabilitiesResponse,
                timeout_seconds,
            )
        )

    def controller_capabilities(self, *, timeout_seconds: float | None = None) -> frozenset[str]:
        """Return the controller's RPC capabilities as enum value names (P-006)."""
        return capabilities.controller_capabilities(
            self._call(
                "Controller/ControllerGetCapabilities",
                csi.ControllerGetCapabilitiesRequest(),
                csi.ControllerGetCapabilitiesResponse,
                timeout_seconds,
            )
        )

    def expansion_modes(self, *, timeout_seconds: float | None = None) -> frozenset[str]:
        """Return how the plugin's volumes can grow: `ONLINE`, `OFFLINE`, both or neither."""
        return capabilities.expansion_modes(
            self._call(
                "Identity/GetPluginCapabilities",
                csi.GetPluginCapabilitiesRequest(),
                csi.GetPluginCapabilitiesResponse,
                timeout_seconds,
            )
        )

    def group_controller_capabilities(
        self, *, timeout_seconds: float | None = None
    ) -> frozenset[str]:
        """Return the group controller's RPC capabilities as enum value names."""
        return capabilities.group_controller_capabilities(
            self._call(
                "GroupController/GroupControllerGetCapabilities",
                csi.GroupControllerGetCapabilitiesRequest(),
                csi.GroupControllerGetCapabilitiesResponse,
                timeout_seconds,
            )
        )

    def node_capabilities(self, *, timeout_seconds: float | None = None) -> frozenset[str]:
        """Return the node service's RPC capabilities as enum value names."""
        return capabilities.node_capabilities(
            self._call(
                "Node/NodeGetCapabilities",
                csi.NodeGetCapabilitiesRequest(),
                csi.NodeGetCapabilitiesResponse,
                timeout_seconds,
            )
        )

    def node_info(self, *, timeout_seconds: float | None = None) -> csi.NodeGetInfoResponse:
        """Return the node id and the topology of the driver's node (P-050)."""
        return self._call(
            "Node/NodeGetInfo", csi.NodeGetInfoRequest(), csi.NodeGetInfoResponse, timeout_seconds
        )

    def create_volume(
        self,
        request: csi.CreateVolumeRequest,
        *,
        timeout_seconds: float | None = None,
        on_slow: Callable[[], None] | None = None,
        slow_after_seconds: float = 2.0,
    ) -> csi.CreateVolumeResponse:
        """Create the volume with the request's name, or return the existing one.

        If the call takes longer than `slow_after_seconds`, `on_slow` runs once in this thread. An
        exception from `on_slow` is only logged, so that the driver's response is not lost.
        """
        return self._call(
            "Controller/CreateVolume",
            request,
            csi.CreateVolumeResponse,
            timeout_seconds,
            on_slow=on_slow,
            slow_after_seconds=slow_after_seconds,
        )

    def delete_volume(
        self,
        volume_id: str,
        secrets: Mapping[str, str],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Delete the volume; it is not an error if the volume does not exist."""
        request = csi.DeleteVolumeRequest(volume_id=volume_id, secrets=secrets)
        self._call("Controller/DeleteVolume", request, csi.DeleteVolumeResponse, timeout_seconds)

    def get_capacity(
        self, request: csi.GetCapacityRequest, *, timeout_seconds: float | None = None
    ) -> csi.GetCapacityResponse:
        """Return the free capacity; unlike in upstream, the call always has a timeout (D-038)."""
        return self._call(
            "Controller/GetCapacity", request, csi.GetCapacityResponse, timeout_seconds
        )

    def list_volumes(
        self, *, max_entries: int = 0, timeout_seconds: float | None = None
    ) -> Iterator[csi.ListVolumesResponse]:
        """Yield one page after another; each page is one call with its own timeout.

        Raises:
            UndecodableAnswerError: the driver returned a page token twice, so the list would be
                endless.
        """

        def page(token: str) -> csi.ListVolumesResponse:
            request = csi.ListVolumesRequest(max_entries=max_entries, starting_token=token)
            answer = csi.ListVolumesResponse
            return self._call("Controller/ListVolumes", request, answer, timeout_seconds)

        return _pages(page, "ListVolumes")

    def list_snapshots(self, *, max_entries: int = 0) -> Iterator[csi.ListSnapshotsResponse]:
        """Yield one page after another, as `list_volumes` does, with the client's own timeout."""

        def page(token: str) -> csi.ListSnapshotsResponse:
            request = csi.ListSnapshotsRequest(max_entries=max_entries, starting_token=token)
            return self._call("Controller/ListSnapshots", request, csi.ListSnapshotsResponse, None)

        return _pages(page, "ListSnapshots")

    def call(
        self,
        method: str,
        request: Message,
        answer_type: type[_Answer],
        *,
        timeout_seconds: float | None = None,
        scrub: bool = True,
        on_slow: Callable[[], None] | None = None,
        slow_after_seconds: float = 0.0,
    ) -> _Answer:
        """Make any call of the CSI spec; `method` is `<Service>/<Method>`.

        Args:
            method: the service and method, such as `Controller/CreateSnapshot`.
            request: the request message.
            answer_type: the class of the response.
            timeout_seconds: the timeout of the call; by default the client's.
            scrub: False to keep an error message as the driver wrote it; only for requests with
                invented secrets.
            on_slow: called once if the call takes longer than `slow_after_seconds`; see
                `create_volume`.
            slow_after_seconds: the time in seconds after which `on_slow` is called.
        """
        return self._call(
            method,
            request,
            answer_type,
            timeout_seconds,
            on_slow=on_slow,
            slow_after_seconds=slow_after_seconds,
            scrub=scrub,
        )

    def deadline_seconds(self, method: str, timeout_seconds: float | None) -> float:
        """Return the timeout of a call; `timeout_seconds` overrides the client's own timeouts."""
        if timeout_seconds is not None:
            return timeout_seconds
        return self._timeouts_by_rpc.get(method, self.timeout_seconds)

    def _call(
        self,
        method: str,
        request: Message,
        answer_type: type[_Answer],
        timeout_seconds: float | None,
        *,
        on_slow: Callable[[], None] | None = None,
        slow_after_seconds: float = 0.0,
        scrub: bool = True,
        is_allowed: Callable[[], bool] | None = None,
    ) -> _Answer:
        """Make one call: log, encode, send, decode and observe it. For `method` see `call`."""
        rpc = f"/csi.v1.{method}"
        timeout = self.deadline_seconds(method, timeout_seconds)
        started = time.monotonic()
        if is_logged := _log.isEnabledFor(logging.DEBUG):
            _log.debug("GRPC call", extra=_content(rpc, request))
        try:
            payload = _encode(request, rpc)
            data = self._send(
                rpc, payload, timeout, on_slow, slow_after_seconds, is_allowed=is_allowed
            )
            answer = _decode(answer_type, data, rpc)
            answers.check(request, answer, rpc=rpc, driver=self._name)
        except errors.CsiError as error:
            if scrub:
                error.details = scrubbing.scrub(error.details, request)
            self._observe(rpc, error.code_name, started)
            if is_logged:
                _log.debug("GRPC error", extra={"method": rpc, "error": str(error)})
            raise
        self._observe(rpc, errors.code_name(errors.OK), started)
        if is_logged:
            _log.debug("GRPC response", extra=_content(rpc, answer))
        return answer

    def _send(
        self,
        rpc: str,
        payload: bytes,
        timeout: float,
        on_slow: Callable[[], None] | None,
        slow_after_seconds: float,
        *,
        is_allowed: Callable[[], bool] | None,
    ) -> bytes:
        """Send bytes to the driver and return its response; raises CsiError without a cause."""
        can_be_slow = on_slow is not None and slow_after_seconds < timeout
        line = self._line
        try:
            channel, methods = line
            method = methods.get(rpc)
            if method is None:
                method = methods[rpc] = channel.unary_unary(rpc, None, None)
            if is_allowed is None and not can_be_slow:
                return method(payload, timeout=timeout)
            # Only a future can be cancelled or waited for in steps, but it costs twice the CPU
            # time.
            call = method.future(payload, timeout=timeout)
            with self._guard(call, is_allowed):
                if on_slow is not None and can_be_slow:
                    self._wait(call, slow_after_seconds, on_slow, rpc)
                return call.result()
        except grpc.RpcError as error:
            failure = _from_rpc_error(error, rpc)
        except grpc.FutureCancelledError:
            failure = errors.CsiError(
                errors.CANCELLED, "the call was cancelled", rpc=rpc, from_transport=True
            )
        except ValueError:
            # gRPC raises this exception if the channel is closed; nothing was sent.
            if self._line is not line:  # `mend` has just replaced it
                return self._send(
                    rpc, payload, timeout, on_slow, slow_after_seconds, is_allowed=is_allowed
                )
            failure = errors.NoStatusError("the connection to the driver is closed", rpc=rpc)
        self._link.look()  # callers check `is_connected` next, to classify the failure
        # The error is raised outside the handlers, so that no gRPC exception is attached as
        # __context__ (see the module's docstring).
        raise failure

    def _wait(
        self, call: grpc.Future[bytes], seconds: float, on_slow: Callable[[], None], rpc: str
    ) -> None:
        """Wait up to `seconds` for the call to finish; if it is still running, run `on_slow`."""
        with suppress(grpc.FutureTimeoutError):
            call.result(seconds)
            return
        try:
            on_slow()
        except Exception:  # noqa: BLE001 - the call continues, and its answer must not be lost
            _log.exception("slow-call callback failed", extra={"method": rpc})

    @contextmanager
    def _guard(
        self, call: grpc.Future[bytes], is_allowed: Callable[[], bool] | None
    ) -> Iterator[None]:
        """Register the call for `recheck`, and check it once in case `recheck` has just run."""
        if is_allowed is None:
            yield
            return
        self._guarded[call] = is_allowed
        try:
            if not is_allowed():
                call.cancel()
            yield
        finally:
            self._guarded.pop(call, None)

    def _observe(self, rpc: str, code_name: str, started: float) -> None:
        ended = time.monotonic()
        if code_name == _OK:
            self.answered_at = ended
        if self._observer is not None:
            self._observer(rpc, code_name, ended - started)


def _encode(request: Message, rpc: str) -> bytes:
    try:
        return request.SerializeToString()
    except (EncodeError, ValueError):
        name = request.DESCRIPTOR.full_name
    raise errors.NoStatusError(f"the request could not be encoded as {name}", rpc=rpc)


def _decode(answer_type: type[_Answer], data: bytes, rpc: str) -> _Answer:
    try:
        return answer_type.FromString(data)
    except (DecodeError, ValueError):
        name = answer_type.DESCRIPTOR.full_name
    raise errors.UndecodableAnswerError(
        f"the driver's answer could not be decoded as {name}", rpc=rpc
    )


def _from_rpc_error(error: grpc.RpcError, rpc: str) -> errors.CsiError:
    """Convert a gRPC error (which is also the call object) to a CsiError."""
    call = cast("grpc.Call", error)
    return errors.from_status(call.code().value[0], call.details() or "", rpc=rpc)


def _content(rpc: str, message: Message) -> dict[str, object]:
    """Return the log fields of a request or a response, with its secrets hidden (P-012)."""
    return {"method": rpc, "content": redact.redact(message)}
