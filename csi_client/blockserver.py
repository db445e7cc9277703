"""Serves the Kubernetes SnapshotMetadata API over TLS, and relays each stream from a CSI driver.

A message of the driver is checked and passed on as the bytes that arrived, because both APIs encode
it in the same way. The next message is read only after gRPC has accepted the last one for the
caller's connection. So a slow caller slows down only its own driver call, and a stream holds a few
messages at most. Each stream has its own connection to the driver, so streams do not share a window
of HTTP/2, and a restarted driver or a renewed certificate needs no attention here.

One thread runs all streams (asyncio). What to call is decided by the function `plan`, which may
block and runs in a small pool.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from csi_client import capabilities, errors
from csi_client import messages as csi
from csi_client._generated import snapshotmetadata_pb2 as api
from csi_client.blocks import BlockCheck, RuleBroken
from csi_client.connection import CsiAddressError, open_channel, parse_address
from csi_client.scrub import scrub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from csi_client.connection import TlsFiles

_log: Final = logging.getLogger(__name__)

ALLOCATED: Final = "GetMetadataAllocated"
DELTA: Final = "GetMetadataDelta"
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The largest message of a driver; gRPC's clients accept no larger one by default."""

_WINDOW_BYTES: Final = 256 * 1024
_BOUNDED: Final = (
    # Without these, gRPC measures the connection and reads megabytes ahead.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
)

_MAX_CALLS: Final = 1000
_MAX_REQUEST_BYTES: Final = 64 * 1024
"""Enough for any token that fits into a header of HTTP; requests are read before the token is."""

# gRPC percent-encodes the text of a status in a trailer, and clients refuse trailers over 8 KiB.
_MAX_TEXT_BYTES: Final = 2048
_REQUEST_SECONDS: Final = 10.0
_PLAN_THREADS: Final = 16
_END_SECONDS: Final = 1.0
_CONTINUE: Final = "Continue after the last received block, with starting_offset"
_SERVING: Final = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse with the status SERVING."""

_REQUESTS: Final[dict[str, Any]] = {
    ALLOCATED: api.GetMetadataAllocatedRequest,
    DELTA: api.GetMetadataDeltaRequest,
}
_ANSWERS: Final[dict[str, Any]] = {
    ALLOCATED: csi.GetMetadataAllocatedResponse,
    DELTA: csi.GetMetadataDeltaResponse,
}
_CAPABILITY: Final = "SNAPSHOT_METADATA_SERVICE"


class StreamRefused(Exception):  # noqa: N818 - an answer to the caller
    """The stream ends with this gRPC status; the text contains no secret."""

    def __init__(self, code: grpc.StatusCode | int, text: str) -> None:
        super().__init__(text)
        self.code = code if isinstance(code, grpc.StatusCode) else _STATUS[code]


_STATUS: Final = {one.value[0]: one for one in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks for; `base` is "" for the allocated blocks."""

    token: str = field(repr=False)
    namespace: str
    snapshot: str
    base: str
    starting_offset: int
    max_results: int
    wants_delta: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """The driver call that answers a caller."""

    driver: str
    caller: str
    endpoint: str
    tls: TlsFiles | None
    snapshot_id: str
    secrets: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that has ended. `driver` and `caller` are "" if they were not found out."""

    method: str
    """The full name of the driver's method."""

    asked: Asked
    driver: str
    caller: str
    code: str
    """The gRPC status as Go spells it."""

    text: str
    seconds: float
    size: int
    """The bytes of the messages that were passed on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    per_driver: int
    per_caller: int
    stream_seconds: float
    driver_seconds: float
    """The timeout of the short calls that precede a stream."""


class BlockServer:
    """Serves one port; `serve` runs until `stop` is called.

    Args:
        port: the TCP port; 0 chooses a free one.
        certificate: the file with the server's certificate.
        key: the file with its private key.
        limits: the limits of streams.
        plan: decides about a call; raises StreamRefused. It runs in several threads.
        observe: called after each stream.
    """

    def __init__(
        self,
        port: int,
        certificate: Path,
        key: Path,
        *,
        limits: Limits,
        plan: Callable[[Asked], Planned],
        observe: Callable[[Ended], None],
    ) -> None:
        self._port = port
        self._files = (certificate, key)
        self._limits = limits
        self._plan = plan
        self._observe = observe
        self._pool = ThreadPoolExecutor(_PLAN_THREADS, thread_name_prefix="plan")
        self._running: Counter[tuple[str, str]] = Counter()
        self._deadlines: set[asyncio.Timeout] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def run(self, on_listening: Callable[[int], None], grace_seconds: float) -> None:
        """Serve until `stop` is called; running streams then have `grace_seconds` to end.

        Args:
            on_listening: called once with the port.
            grace_seconds: the time for streams that are running when `stop` is called.

        Raises:
            OSError: the port or a certificate file cannot be used.
        """
        asyncio.run(self._serve(on_listening, grace_seconds))

    def stop(self) -> None:
        """End `run`; call this in any thread, or in a signal handler."""
        if self._loop is None:
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)

    def running(self) -> dict[str, int]:
        """Return the number of running streams of each driver."""
        return {name: n for (kind, name), n in self._running.copy().items() if kind == "driver"}

    async def _serve(self, on_listening: Callable[[int], None], grace_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        options = [
            *_BOUNDED,
            ("grpc.http2.write_buffer_size", _WINDOW_BYTES),
            ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
            # A caller whose machine is gone must not keep its place until the stream's deadline.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "snapshotmetadata.SnapshotMetadata",
                    {one: self._handler(one) for one in (ALLOCATED, DELTA)},
                ),
                grpc.method_handlers_generic_handler(
                    "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(_health)}
                ),
            )
        )
        try:
            port = server.add_secure_port(f"[::]:{self._port}", self._credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on port {self._port}: {error}") from None
        await server.start()
        on_listening(port)
        await self._stopping.wait()
        # The streams end themselves before gRPC would cancel them, so that their callers learn why.
        for one in self._deadlines:
            if not one.expired():  # such a stream is ending, and its timeout cannot be changed
                one.reschedule(min(one.when() or 0.0, self._loop.time() + grace_seconds))
        await server.stop(grace_seconds + _END_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _credentials(self) -> grpc.ServerCredentials:
        """Return credentials that read the files again on every handshake."""
        seen = self._pair()

        def fetch() -> Any:  # None means no change; the library's types do not know that
            nonlocal seen
            with suppress(OSError):  # the old pair remains in use while the files are replaced
                now = self._pair()
                if now != seen:
                    seen = now
                    return grpc.ssl_server_certificate_configuration([now])
            return None

        return grpc.dynamic_ssl_server_credentials(
            grpc.ssl_server_certificate_configuration([seen]), fetch
        )

    def _pair(self) -> tuple[bytes, bytes]:
        certificate, key = self._files
        return key.read_bytes(), certificate.read_bytes()

    def _handler(self, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def handle(_: Any, context: Any) -> None:
            stream = _Stream(method, await _request(method, context), context)
            started = time.monotonic()
            code, text = await self._outcome(stream)
            text = _cut(text)
            self._observe(
                Ended(
                    f"/csi.v1.SnapshotMetadata/{method}",
                    stream.asked,
                    stream.driver,
                    stream.caller,
                    errors.code_name(code.value[0]),
                    text,
                    time.monotonic() - started,
                    stream.size,
                )
            )
            if code is not grpc.StatusCode.OK:
                await context.abort(code, text)

        # As a handler of one request, it would wait without a limit for callers that send none, and
        # gRPC would log a traceback for each unreadable one.
        return grpc.stream_stream_rpc_method_handler(handle)

    async def _outcome(self, stream: _Stream) -> tuple[grpc.StatusCode, str]:
        """Run the stream; return the status with which it ends."""
        longest = self._limits.stream_seconds
        deadline = asyncio.timeout(longest)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                await self._answer(stream)
        except StreamRefused as refused:
            return refused.code, str(refused)
        except TimeoutError:
            if self._stopping.is_set():
                return grpc.StatusCode.UNAVAILABLE, f"the server is stopping. {_CONTINUE}"
            return grpc.StatusCode.DEADLINE_EXCEEDED, (
                f"the stream took longer than {longest:.0f} s (--max-streaming-duration-min). "
                f"{_CONTINUE}"
            )
        except asyncio.CancelledError:
            return grpc.StatusCode.CANCELLED, "the caller cancelled the stream"
        except Exception:  # noqa: BLE001 - the edge of a stream
            _log.exception("unexpected error in a stream of block metadata")
            return grpc.StatusCode.INTERNAL, "unexpected error in csi-fleet; its log has the cause"
        finally:
            self._deadlines.discard(deadline)
        return grpc.StatusCode.OK, ""

    async def _answer(self, stream: _Stream) -> None:
        asked = stream.asked
        loop = asyncio.get_running_loop()
        planned = await loop.run_in_executor(self._pool, self._plan, asked)
        stream.driver, stream.caller = planned.driver, planned.caller
        with (
            self._place("driver", planned.driver, self._limits.per_driver),
            self._place("caller", planned.caller, self._limits.per_caller),
        ):
            await self._relay(stream, planned)

    @contextmanager
    def _place(self, kind: str, name: str, most: int) -> Iterator[None]:
        """Count a stream of this driver or caller; refuse it if there are too many."""
        if self._running[kind, name] >= most:
            raise StreamRefused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{kind} {name} has {most} streams already (--max-streams-per-{kind}). Retry when "
                "one has ended",
            )
        self._running[kind, name] += 1
        try:
            yield
        finally:
            self._running[kind, name] -= 1
            if not self._running[kind, name]:
                del self._running[kind, name]

    async def _relay(self, stream: _Stream, planned: Planned) -> None:
        asked = stream.asked
        request = _csi_request(asked, planned)
        check, read = BlockCheck(asked.starting_offset, asked.max_results), _ANSWERS[stream.method]
        try:
            channel = open_channel(
                parse_address(planned.endpoint, allow_tcp=True),
                tls=planned.tls,
                max_receive_bytes=MAX_MESSAGE_BYTES,
                library=grpc.aio,
                options=_BOUNDED,
            )
        except CsiAddressError as error:
            raise _not_ready(planned.driver, str(error)) from None
        async with channel:  # leaving the block cancels the driver's call
            await self._check_driver(channel, planned.driver)
            call = channel.unary_stream(f"/csi.v1.SnapshotMetadata/{stream.method}")
            try:
                async for message in call(request.SerializeToString()):
                    check.see(read.FromString(message))
                    await stream.context.write(message)
                    stream.size += len(message)
            except grpc.aio.AioRpcError as error:
                raise _of_driver(error, request) from None
            except (RuleBroken, DecodeError) as error:
                text = str(error) if isinstance(error, RuleBroken) else "sent an unreadable message"
                raise StreamRefused(
                    grpc.StatusCode.INTERNAL, f"the CSI driver {planned.driver} {text}"
                ) from None

    async def _check_driver(self, channel: Any, driver: str) -> None:
        """Check that this driver answers, and that it has the service.

        Upstream asks once at its start. Here, another driver may have taken the socket since then.
        """

        async def ask(method: str, answer: Any) -> Any:
            call = channel.unary_unary(f"/csi.v1.Identity/{method}", None, answer.FromString)
            try:
                return await call(b"", timeout=self._limits.driver_seconds, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                raise _not_ready(driver, f"{method}: {error.code().name}") from None

        name = (await ask("GetPluginInfo", csi.GetPluginInfoResponse)).name
        if name != driver:
            raise _not_ready(driver, f"its endpoint is served by the driver {name!r}")
        found = await ask("GetPluginCapabilities", csi.GetPluginCapabilitiesResponse)
        if _CAPABILITY not in capabilities.plugin_capabilities(found):
            raise StreamRefused(
                grpc.StatusCode.UNIMPLEMENTED,
                f"CSI driver {driver} does not support the {_CAPABILITY}",
            )


class _Stream:
    """One call of a caller, and what is known about it for the log and the metrics."""

    def __init__(self, method: str, request: Any, context: Any) -> None:
        is_delta = method == DELTA
        self.method = method
        self.context = context
        self.asked = Asked(
            request.security_token,
            request.namespace,
            request.target_snapshot_name if is_delta else request.snapshot_name,
            request.base_snapshot_id if is_delta else "",
            request.starting_offset,
            request.max_results,
            is_delta,
        )
        self.driver = self.caller = ""
        self.size = 0


async def _request(method: str, context: Any) -> Any:
    """Read the request; a caller that sends none must not keep its place."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            data = await context.read()
    except TimeoutError:
        text = f"no request arrived within {_REQUEST_SECONDS:.0f} s"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
    try:
        return _REQUESTS[method].FromString(data)
    except (DecodeError, TypeError):  # or the caller ended its stream of requests without one
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is unreadable")


def _cut(text: str) -> str:
    """Return the text, truncated to what a caller's gRPC accepts."""
    data = text.encode(errors="replace")
    if len(data) <= _MAX_TEXT_BYTES:
        return text
    return f"{data[:_MAX_TEXT_BYTES].decode(errors='ignore')} ... (cut)"


def _csi_request(
    asked: Asked, planned: Planned
) -> csi.GetMetadataAllocatedRequest | csi.GetMetadataDeltaRequest:
    common: dict[str, Any] = {
        "starting_offset": asked.starting_offset,
        "max_results": asked.max_results,
        "secrets": planned.secrets,
    }
    if asked.wants_delta:
        return csi.GetMetadataDeltaRequest(
            base_snapshot_id=asked.base, target_snapshot_id=planned.snapshot_id, **common
        )
    return csi.GetMetadataAllocatedRequest(snapshot_id=planned.snapshot_id, **common)


def _of_driver(error: grpc.aio.AioRpcError, request: Any) -> StreamRefused:
    """Return the driver's status for the caller, without the secrets of the request."""
    code, text = error.code(), scrub(error.details() or "", request)
    if code in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK}:
        code = grpc.StatusCode.INTERNAL
        text = f"failed to get response from CSI driver: {text}"
    return StreamRefused(code, text)


def _not_ready(driver: str, why: str) -> StreamRefused:
    return StreamRefused(
        grpc.StatusCode.UNAVAILABLE, f"the CSI driver is not yet ready: {driver}: {why}"
    )


async def _health(_: bytes, __: Any) -> bytes:
    return _SERVING
