"""One trace per claim: reconciles, waits and calls use the claim's UID as trace id (issue 10)."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.crash_world import UID, CrashWorld
from workers.observability import tracing
from workers.observability.metrics import Metrics
from workers.observability.requests import api_observer, csi_observer
from workers.observability.tracing import Tracing, claim_ids, trace_id_of

CLAIM_UID = "0cfc8f5d-911d-4b51-9c24-bf5f3fae6ac4"
TRACE = 0x0CFC8F5D911D4B519C24BF5F3FAE6AC4


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter):
    provider = TracerProvider(id_generator=claim_ids())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Tracing(provider)
    provider.shutdown()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"claims|d|shop/data|{CLAIM_UID}", TRACE, id="a claim's key"),
        pytest.param(f"volumes|d|pvc-{CLAIM_UID}|", TRACE, id="its volume's key"),
        pytest.param("volumes|d|handmade|", None, id="a volume of another name"),
    ],
)
def test_the_uid_names_the_trace(text, expected):
    assert trace_id_of(text) == expected


def test_two_passes_and_the_deletion_are_one_trace(traces, exporter):
    metrics = Metrics()
    for kind, text in (
        ("claims", f"claims|d|shop/data|{CLAIM_UID}"),
        ("claims", f"claims|d|shop/data|{CLAIM_UID}"),
        ("volumes", f"volumes|d|pvc-{CLAIM_UID}|"),
    ):
        with traces.work(f"{kind} pass", text, 0.5, key=text, driver="d"):
            csi_observer(metrics)("d", "/csi.v1.Controller/CreateVolume", "Internal", 0.25)
            api_observer(metrics)("POST", "/api/v1/persistentvolumes", 201, 0.01)
            tracing.ended("retry", "no-change", is_error=True)
    spans = exporter.get_finished_spans()
    assert {span.context.trace_id for span in spans} == {TRACE}
    roots = [span for span in spans if span.parent is None]
    assert [span.name for span in roots] == ["claims pass", "claims pass", "volumes pass"]
    assert roots[0].attributes["csi_fleet.driver"] == "d"
    assert roots[0].attributes["csi_fleet.result"] == "no-change"
    assert not roots[0].status.is_ok
    below = [
        span for span in spans if span.parent and span.parent.span_id == roots[0].context.span_id
    ]
    assert {span.name for span in below} == {
        "queued",
        "CreateVolume",
        "create persistentvolumes",
    }
    rpc = next(span for span in below if span.name == "CreateVolume")
    assert rpc.attributes["rpc.response.status_code"] == "Internal"
    assert rpc.end_time - rpc.start_time == 250_000_000
    assert not rpc.status.is_ok


def test_calls_outside_of_a_pass_leave_no_span(traces, exporter):
    api_observer(Metrics())("GET", "/api/v1/nodes/n1", 200, 0.01)
    assert exporter.get_finished_spans() == ()


def test_a_real_pass_is_traced(redis_client, traces, exporter):
    world = CrashWorld(redis_client)
    world.add_claim()
    owner = world.owner()
    owner.runtime.tracing = traces
    world.live(owner)
    roots = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert {span.attributes["csi_fleet.result"] for span in roots} >= {"provisioned"}
    assert {span.attributes["csi_fleet.key"].split("|")[3] for span in roots} == {UID}


class Collector(BaseHTTPRequestHandler):
    """A collector that takes OTLP over HTTP."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    server = HTTPServer(("127.0.0.1", 0), Collector)
    server.taken = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_environment_names_the_collector(collector, monkeypatch):
    url = f"http://127.0.0.1:{collector.server_port}"
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    traces = Tracing.from_environment(env)
    with traces.work("claims pass", f"claims|d|shop/data|{CLAIM_UID}", 0.0, driver="d"):
        pass
    traces.stop()
    assert [path for path, _ in collector.taken] == ["/v1/traces"]
    sent = ExportTraceServiceRequest.FromString(collector.taken[0][1]).resource_spans[0]
    assert {one.key: one.value.string_value for one in sent.resource.attributes}[
        "service.name"
    ] == "csi-fleet"
    assert {span.trace_id.hex() for span in sent.scope_spans[0].spans} == {f"{TRACE:032x}"}


def test_nothing_of_traces_is_imported_unless_asked_for():
    """If OpenTelemetry is installed, redis-py loads its metrics but nothing of tracing."""
    code = (
        "import sys, workers.cli.worker; from workers.observability.tracing import Tracing; "
        "t = Tracing.from_environment({})\n"
        "with t.work('n', 'k', 0.0): pass\n"
        "t.stop(); traces = {'opentelemetry.sdk.trace', 'opentelemetry.exporter'}\n"
        "sys.exit(bool(traces & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_extra_is_one_warning(monkeypatch, caplog):
    """An operator who sets the variable for every pod must not stop this one."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    traces = Tracing.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    with traces.work("n", "k", 0.0):
        pass
    assert caplog.messages == ["no traces are sent; install csi-fleet[tracing] to send them"]
