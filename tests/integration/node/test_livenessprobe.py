"""livenessprobe as a process, over a real socket (LPT-001 to LPT-017)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.node.conftest import get
from tests.support.identity_driver import IdentityDriver, cpu_share, memory_mib
from tests.support.processes import Process, free_port
from tests.support.waiting import wait_until
from workers.node.http import Client
from workers.node.liveness import Metrics

pytestmark = pytest.mark.integration
Launch = Callable[..., Process]


def start(launch: Launch, folder: Path, *more: str) -> int:
    """Start livenessprobe, wait until it listens, and return its port."""
    port = free_port()
    launch("livenessprobe", f"--csi-address={folder}/csi.sock", f"--health-port={port}", *more)
    wait_until(lambda: get(port, "/"), 20, "livenessprobe listens")
    return port


@pytest.mark.parametrize(
    ("ready", "answer"),
    [
        pytest.param(True, (200, "ok"), id="LPT-001 ready"),
        pytest.param(None, (200, "ok"), id="LPT-002 ready absent"),
        pytest.param(False, (500, "driver responded but is not ready"), id="LPT-003 not ready"),
    ],
)
def test_what_probe_says_is_what_the_kubelet_hears(
    launch: Launch,
    folder: Path,
    driver: IdentityDriver,
    ready: bool | None,
    answer: tuple[int, str],
) -> None:
    """LP-001, LP-020, LP-021: every path except /healthz returns 404 (LPT-013)."""
    driver.ready = ready
    port = start(launch, folder)
    assert get(port) == answer
    assert get(port, "/metrics")[0] == 404
    assert get(port, "/healthz/more")[0] == 404


@pytest.mark.parametrize("code", ["FAILED_PRECONDITION", "UNIMPLEMENTED"])
def test_an_error_of_probe_is_a_failure_with_its_text(
    launch: Launch, folder: Path, driver: IdentityDriver, code: str
) -> None:
    """LPT-004, LP-022: an error of Probe is status 500 with its text.

    This includes codes that the start-up loop of the controllers ignores.
    """
    driver.code = grpc.StatusCode[code]
    port = start(launch, folder)
    status, text = get(port)
    assert status == 500
    assert "as scripted" in text


def test_terse_keeps_the_text_to_the_log(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPD-006: with `--terse` the reply has no error text,
    which would show paths to anyone who can reach the port.
    """
    driver.ready = False
    assert get(start(launch, folder, "--terse"), "/healthz") == (500, "unhealthy")


def test_a_slow_probe_ends_at_the_timeout(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPT-005: the reply comes at the deadline, long before the driver would answer."""
    driver.delay_seconds = 60
    port = start(launch, folder, "--probe-timeout=1s")
    started = time.monotonic()
    assert get(port)[0] == 500
    assert time.monotonic() - started < 20


def test_the_process_outlives_its_driver(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPT-006, LPT-007, LP-011: the status is 500 without the socket, and 200 when it returns."""
    port = start(launch, folder, "--probe-timeout=1s")
    assert get(port) == (200, "ok")
    driver.stop()
    assert get(port)[0] == 500
    driver.start()
    wait_until(lambda: get(port) == (200, "ok"), 20, "healthy again")


def test_nobody_listens_before_the_driver_answered(launch: Launch, folder: Path) -> None:
    """LPT-008, LP-010: before the driver's first answer the
    process does not listen, so the kubelet's probe is refused.
    """
    port = free_port()
    address = f"--csi-address={folder}/csi.sock"
    process = launch("livenessprobe", address, f"--health-port={port}")
    early = free_port()
    launch("livenessprobe", address, f"--health-port={early}", "--serve-before-ready")
    wait_until(lambda: get(early) == (500, "driver not ready yet"), 20, "it serves at once")
    with pytest.raises(OSError, match="refused"):
        get(port)
    driver = IdentityDriver(folder / "csi.sock").start()
    try:
        wait_until(lambda: get(port) == (200, "ok"), 20, "it listens")
        wait_until(lambda: get(early) == (200, "ok"), 20, "it is healthy")
    finally:
        driver.stop()
    assert process.is_running()


def test_a_name_that_comes_late_is_waited_for(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPD-004: UNAVAILABLE at the start must not end the process."""
    driver.name_errors = 2
    assert get(start(launch, folder)) == (200, "ok")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(["--health-port=9900", "--http-endpoint=:8080"], "Only one of", id="LPT-010"),
        pytest.param(["--health-port=9808", "--http-endpoint=:8080"], "Only one of", id="LPD-003"),
        pytest.param(
            ["--metrics-address=:8081", "--http-endpoint=:8080"], "Only one of", id="LPT-011"
        ),
        pytest.param(["--logging-format=xml"], "is not a log format", id="LP-003"),
    ],
)
def test_conflicting_flags_end_with_one_line(
    launch: Launch, folder: Path, driver: IdentityDriver, arguments: list[str], text: str
) -> None:
    """LP-003, LPD-003: the exit code is 1, and the log names the conflict."""
    process = launch("livenessprobe", f"--csi-address={folder}/csi.sock", *arguments)
    assert ends_with(process, 1)
    assert text in process.log_tail()


def test_an_unknown_flag_is_refused(launch: Launch) -> None:
    process = launch("livenessprobe", "--kubeconfig=x")
    assert ends_with(process, 2)
    assert "unknown flag: --kubeconfig" in process.log_tail()


def test_an_empty_name_ends_the_process(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPT-009: the exit code is 1."""
    driver.name = ""
    assert ends_with(launch("livenessprobe", f"--csi-address={folder}/csi.sock"), 1)


def test_a_port_in_use_is_an_error(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """LPT-014, LPD-001, LPD-009: the exit code is 1. Upstream's livenessprobe exits with 0."""
    port = start(launch, folder)
    again = launch("livenessprobe", f"--csi-address={folder}/csi.sock", f"--health-port={port}")
    assert ends_with(again, 1)
    assert f"cannot listen on :{port}" in again.log_tail()


def test_metrics_are_served_with_the_http_endpoint(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPT-012, LP-023: every call except the first has the driver's name as a label."""
    port, address = free_port(), f"--csi-address={folder}/csi.sock"
    launch("livenessprobe", address, f"--http-endpoint=127.0.0.1:{port}")
    wait_until(lambda: get(port) == (200, "ok"), 20, "healthy")
    page = get(port, "/metrics")[1]
    families = {family.name: family for family in text_string_to_metric_families(page)}
    calls = families["csi_sidecar_operations_seconds"].samples
    named = {"driver_name": "d.test", "grpc_status_code": "OK"}
    probed = {**named, "method_name": "/csi.v1.Identity/Probe"}
    assert [one.value for one in calls if one.name.endswith("_count") and one.labels == probed] == [
        1
    ]
    below = [
        one
        for one in calls
        if one.name.endswith("_bucket") and probed.items() <= one.labels.items()
    ]
    assert [one.value for one in below] == sorted(one.value for one in below)
    assert (below[-1].labels["le"], below[-1].value) == ("+Inf", 1)
    assert "unknown-driver" in {one.labels["driver_name"] for one in calls}
    assert families["process_start_time_seconds"].samples[0].value > 1.7e9


def test_without_an_endpoint_the_log_says_that_there_are_no_metrics(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPD-005: the log says this once."""
    port = free_port()
    process = launch("livenessprobe", f"--csi-address={folder}/csi.sock", f"--health-port={port}")
    wait_until(lambda: get(port) == (200, "ok"), 20, "healthy")
    assert process.log_tail().count("no metrics are served") == 1


def test_another_driver_behind_the_socket_gets_its_own_label(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPD-007: the label follows the driver's present name."""
    port = free_port()
    endpoint = f"--http-endpoint=127.0.0.1:{port}"
    launch("livenessprobe", f"--csi-address={folder}/csi.sock", endpoint, "--probe-timeout=1s")
    wait_until(lambda: get(port) == (200, "ok"), 20, "healthy")
    driver.stop()
    assert get(port)[0] == 500
    driver.name = "renamed.test"
    driver.start()

    def told() -> bool:
        return get(port)[0] == 200 and 'driver_name="renamed.test"' in get(port, "/metrics")[1]

    wait_until(told, 20, "calls are counted for the new name")


def test_a_hostile_name_breaks_no_metrics_page() -> None:
    """The metrics page is valid for any driver name, because a driver chooses its name freely."""
    metrics = Metrics()
    metrics.driver = 'a"b\\c\nd'
    metrics.observe("/m", "OK", 0.3)
    page = metrics.answer(cast("Client", None))[1]
    sample = next(iter(text_string_to_metric_families(page))).samples[0]
    assert sample.labels["driver_name"] == metrics.driver


def test_metrics_may_have_a_listener_of_their_own(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LP-004 row 2: the listener serves the metrics at its own path, and no health check."""
    metrics = free_port()
    port = start(launch, folder, f"--metrics-address=127.0.0.1:{metrics}", "--metrics-path=/m")
    assert get(port) == (200, "ok")
    assert "csi_sidecar_operations_seconds" in get(metrics, "/m")[1]
    assert get(metrics)[0] == 404


def test_requests_at_one_time_share_a_probe(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPT-015, LPD-006: parallel requests share a probe, so a flood does not reach the driver.

    More than 16 waiting requests get status 503 (LP-030).
    """
    port = start(launch, folder)
    driver.probes, driver.delay_seconds = 0, 1.0
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(get(port)[0])) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 503}
    assert answers.count(200) >= 16
    assert driver.probes <= 50 / 16 + 1


def test_a_young_result_is_given_again(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    port = start(launch, folder, "--min-probe-interval=1h")
    assert [get(port) for _ in range(5)] == [(200, "ok")] * 5
    assert driver.probes == 1


def test_a_client_that_goes_takes_its_probe_along(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """LPT-016, LP-020: when the client disconnects, the probe is cancelled."""
    driver.delay_seconds = 60
    port = start(launch, folder, "--probe-timeout=60s")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: driver.probes == 1, 20, "the probe arrived")
    wait_until(lambda: driver.cancelled == 1, 20, "the probe was cancelled")


def test_ipv6_is_served_too(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """LPT-017, LPD-002: the port also listens on IPv6."""
    assert get(start(launch, folder), host="[::1]") == (200, "ok")


def test_nonsense_gets_400_and_the_port_lives_on(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    port = start(launch, folder)
    for garbage in (b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"A" * 9000):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(garbage)
            assert client.recv(100).startswith(b"HTTP/1.1 400")
    assert get(port) == (200, "ok")


def test_sigterm_ends_with_0(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """LP-030: SIGTERM leads to exit code 0."""
    port = free_port()
    process = launch("livenessprobe", f"--csi-address={folder}/csi.sock", f"--health-port={port}")
    wait_until(lambda: get(port) == (200, "ok"), 20, "healthy")
    assert process.stop() == 0


def test_it_is_light(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """It uses less than 35 MiB, and less than 0.1 % of a core when idle."""
    port = free_port()
    process = launch(
        "livenessprobe", f"--csi-address={folder}/csi.sock", f"--http-endpoint=127.0.0.1:{port}"
    )
    wait_until(lambda: get(port) == (200, "ok"), 20, "healthy")
    assert memory_mib(process.pid) < 35
    wait_until(lambda: cpu_share(process.pid, 5) < 0.001, 90, "it idles")


def ends_with(process: Process, code: int) -> bool:
    """Wait for the process to end; return True if it had that exit code."""
    assert process.popen is not None
    return process.popen.wait(60) == code
