"""Exports one OpenTelemetry trace per claim, if tracing is enabled.

The id of a trace is the UID of its claim. So all reconciles of a claim, in any process and at any
time, and the deletion of the volume `pvc-<uid>`, are spans of one trace, although no trace context
is passed between them. The child spans of a reconcile are its wait in the queue, its calls to the
driver and its requests to the API server.

OpenTelemetry is imported only if the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`).
It is installed with the extra `csi-fleet[tracing]`. The other variables of the SDK (headers,
service name, sampler) also work.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import TracerProvider

_log = get_logger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
STOP_MILLISECONDS: Final = 3000
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_trace_id: ContextVar[int | None] = ContextVar("trace_id", default=None)
_tracer: ContextVar[Any] = ContextVar("tracer", default=None)


class Tracing:
    """Traces the reconciles of one process; without a provider, it does nothing.

    Args:
        provider: a provider that has `claim_ids()` as its id generator.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("csi-fleet") if provider is not None else None

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Tracing:
        """Return a `Tracing` that sends spans to the collector named by the environment, if any."""
        if not any(env.get(name) for name in ENDPOINTS):
            return cls()
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            _log.warning("no traces are sent; install csi-fleet[tracing] to send them", err=error)
            return cls()
        name = env.get("OTEL_SERVICE_NAME") or "csi-fleet"
        provider = TracerProvider(
            id_generator=claim_ids(), resource=Resource.create({"service.name": name})
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def work(
        self, name: str, text: str, waited_seconds: float, **fields: str
    ) -> AbstractContextManager[None]:
        """Trace the block (one reconcile) as a span; calls inside it become child spans.

        Args:
            name: the name of the span.
            text: the key as a string; a UID in it becomes the trace id.
            waited_seconds: how long the key had to wait for this reconcile.
            fields: the same fields as on log lines: key, driver, claim or volume.
        """
        if self._tracer is None:
            return nullcontext()
        return _work(self._tracer, name, text, waited_seconds, fields)

    def stop(self) -> None:
        """Send the remaining spans; this takes at most a few seconds."""
        if self._provider is not None:
            self._provider.force_flush(STOP_MILLISECONDS)
            self._provider.shutdown()


@contextmanager
def _work(
    tracer: Any, name: str, text: str, waited_seconds: float, fields: Mapping[str, str]
) -> Iterator[None]:
    ids = _trace_id.set(trace_id_of(text))
    token = _tracer.set(tracer)
    try:
        now = time.time_ns()
        start = now - round(waited_seconds * 1e9)
        attributes = {f"csi_fleet.{key}": value for key, value in fields.items()}
        with tracer.start_as_current_span(name, start_time=start, attributes=attributes):
            tracer.start_span("queued", start_time=start).end(now)
            yield
    finally:
        _tracer.reset(token)
        _trace_id.reset(ids)


def claim_ids() -> Any:
    """Return an id generator whose trace id is the UID of the current claim."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415

    class ClaimIds(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            return _trace_id.get() or super().generate_trace_id()

    return ClaimIds()


def trace_id_of(text: str) -> int | None:
    """Return the UID in a key's string form as a number; None if it contains no UID."""
    found = _UID.findall(text)
    return int(found[-1].replace("-", ""), 16) if found else None


def call(name: str, seconds: float, *, is_error: bool, **fields: str | int) -> None:
    """Add a finished call to the driver or API server as a child of the current reconcile."""
    tracer = _tracer.get()
    if tracer is None:
        return
    from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415 - already loaded

    now = time.time_ns()
    attributes = {key.replace("__", "."): value for key, value in fields.items()}
    span = tracer.start_span(
        name, kind=SpanKind.CLIENT, start_time=now - round(seconds * 1e9), attributes=attributes
    )
    if is_error:
        span.set_status(Status(StatusCode.ERROR))
    span.end(now)


def ended(outcome: str, result: str, *, is_error: bool) -> None:
    """Set the outcome of the current reconcile's span."""
    if _tracer.get() is None:
        return
    from opentelemetry import trace  # noqa: PLC0415 - already loaded

    span = trace.get_current_span()
    span.set_attributes({"csi_fleet.outcome": outcome, "csi_fleet.result": result})
    if is_error:
        span.set_status(trace.Status(trace.StatusCode.ERROR, result))
