"""csi-node-driver-registrar as a process; the test acts as the kubelet (NRT-001 to NRT-027)."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from csi_client.registration import RegistrationError, ask
from tests.integration.node.conftest import get
from tests.support.identity_driver import IdentityDriver, cpu_share, memory_mib, notify
from tests.support.processes import Process, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
Launch = Callable[..., Process]
ENDPOINT = "/var/lib/kubelet/plugins/d.test/csi.sock"


def arguments(folder: Path, *more: str) -> list[str]:
    """Return the flags of a usual manifest."""
    return [
        "csi-node-driver-registrar",
        f"--csi-address={folder}/csi.sock",
        f"--plugin-registration-path={folder}",
        f"--kubelet-registration-path={ENDPOINT}",
        *more,
    ]


def offered(folder: Path, name: str = "d.test") -> Path:
    """Wait until the registration socket answers, and return its path."""
    path = folder / f"{name}-reg.sock"
    wait_until(lambda: ask(path, 1.0), 30, f"{path} answers")
    return path


def ends_with(process: Process, code: int) -> bool:
    """Wait for the process to end; return True if it had that exit code."""
    assert process.popen is not None
    return process.popen.wait(60) == code


def test_the_kubelet_gets_the_driver_again_and_again(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-001, NRT-002, NRT-006, NRT-027, NR-010, NR-011: a restarted kubelet asks once more."""
    process = launch(*arguments(folder))
    path = offered(folder)
    for _ in range(2):
        answer = ask(path, 5.0)
        assert (answer.type, answer.name, answer.endpoint) == ("CSIPlugin", "d.test", ENDPOINT)
        assert list(answer.supported_versions) == ["1.0.0"]
        notify(path, registered=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert process.is_running()
    visible = {entry.name for entry in folder.iterdir() if entry.name.endswith(".sock")}
    assert visible == {"csi.sock", "d.test-reg.sock"}


def test_a_refusal_is_answered_and_then_ends_the_process(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-003, NR-012, NR-040: unlike upstream, the process answers the kubelet before it ends."""
    process = launch(*arguments(folder))
    notify(offered(folder), registered=False, error="boom")
    assert ends_with(process, 1)
    assert "boom" in process.log_tail()
    assert not (folder / "d.test-reg.sock").exists()


def test_a_refusal_may_be_survived(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """NRD-001: the driver is offered again with a new socket file."""
    process = launch(*arguments(folder, "--exit-on-registration-failure=false"))
    path = offered(folder)
    first = path.stat().st_mtime_ns
    notify(path, registered=False, error="not yet")
    wait_until(lambda: path.stat().st_mtime_ns != first, 30, "offered again")
    notify(offered(folder), registered=True)
    assert process.is_running()


def test_a_stale_socket_is_replaced(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """NRT-004, NR-013: a socket file without a listener does not prevent the registration."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / "d.test-reg.sock"))
    launch(*arguments(folder))
    assert ask(offered(folder), 5.0).name == "d.test"


def test_a_file_in_the_way_stays_and_is_an_error(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-005: the file might be the user's, so the exit code is 1."""
    path = folder / "d.test-reg.sock"
    path.write_text("mine")
    process = launch(*arguments(folder))
    assert ends_with(process, 1)
    assert path.read_text() == "mine"
    assert "is not a socket" in process.log_tail()


@pytest.mark.parametrize("is_removed", [False, True], ids=["NRT-007", "NRT-008"])
def test_sigterm_takes_the_socket_along(
    launch: Launch, folder: Path, driver: IdentityDriver, is_removed: bool
) -> None:
    """NR-014: without the socket the kubelet removes the driver from its node."""
    process = launch(*arguments(folder))
    path = offered(folder)
    if is_removed:
        path.unlink()
    assert process.stop() == 0
    assert not path.exists()


def test_a_foreign_socket_stays(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """NRT-009, NRD-004, NRD-009: only the process' own socket is removed at the end."""
    process = launch(*arguments(folder))
    path = offered(folder)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        assert process.stop() == 0
        assert path.exists()


@pytest.mark.parametrize("listens", [True, False], ids=["another program's", "a dead one's"])
def test_a_socket_that_was_replaced_is_made_again(
    launch: Launch, folder: Path, driver: IdentityDriver, listens: bool
) -> None:
    """node-driver-registrar#57: the registrar replaces a foreign socket file.

    Otherwise the node would lose the driver without any report.
    """
    launch(*arguments(folder))
    path = offered(folder)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        if listens:
            foreign.listen()
        wait_until(lambda: answers(path), 30, "the driver's registrar answers again")


def answers(path: Path) -> bool:
    try:
        return ask(path, 1.0).name == "d.test"
    except RegistrationError:
        return False


def test_two_registrars_of_one_name_take_turns(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRD-009: the new registrar waits until the old one ends, as in a rolling update."""
    old = launch(*arguments(folder))
    path = offered(folder)
    before = path.stat().st_ino
    new = launch(*arguments(folder))
    wait_until(lambda: "another registrar" in new.log_tail(), 30, "the new one waits")
    assert path.stat().st_ino == before
    assert old.stop() == 0
    assert ask(offered(folder), 5.0).name == "d.test"
    assert new.is_running()


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        pytest.param([], 1, "kubelet-registration-path is a required parameter", id="NRT-010"),
        pytest.param(["--version"], 0, "csi-node-driver-registrar 0", id="NRT-011"),
        pytest.param(
            ["--kubelet-registration-path=/x", "--mode=kubelet-registration-probe"],
            0,
            "",
            id="NRT-012",
        ),
        pytest.param(["--mode=kubelet-registration-probe"], 1, "required parameter", id="NRT-013"),
        pytest.param(
            ["--kubelet-registration-path=/x", "--health-port=9809", "--http-endpoint=:1"],
            1,
            "only one of",
            id="NRT-018",
        ),
    ],
)
def test_flags(launch: Launch, flags: list[str], code: int, text: str) -> None:
    """NR-003 to NR-005: the flags are checked before any file or socket is touched."""
    process = launch("csi-node-driver-registrar", *flags)
    assert ends_with(process, code)
    assert text in process.log_tail()


def test_an_unknown_mode_registers(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """NRT-014; NR-030, NRT-024: without a flag there is no HTTP server."""
    process = launch(*arguments(folder, "--mode=foo"))
    offered(folder)
    assert "Skipping HTTP server" in process.log_tail()


def test_a_port_in_use_ends_it_before_the_kubelet_is_called(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRD-011: the process ends before it offers a socket. Upstream's registrar ends after that."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = launch(*arguments(folder, f"--http-endpoint={address}"))
        assert ends_with(process, 1)
    assert f"cannot listen on {address}" in process.log_tail()
    assert "the registration server is listening" not in process.log_tail()


def test_sigusr1_shows_every_thread(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """NRD-013: the log shows the stacks. This replaces pprof on a port that every pod can reach."""
    process = launch(*arguments(folder))
    offered(folder)
    os.kill(process.pid, signal.SIGUSR1)
    wait_until(lambda: "most recent call first" in process.log_tail(), 20, "the stacks are told")
    assert process.is_running()


def test_the_process_of_both_waits_for_a_slow_driver(launch: Launch, folder: Path) -> None:
    """LP-010: the combined process keeps waiting, because its
    end would also end the liveness probe, and then the driver.
    """
    port = free_port()
    endpoint = f"--http-endpoint=127.0.0.1:{port}"
    process = launch("node", *arguments(folder, endpoint, "--timeout=100ms")[1:])
    wait_until(lambda: get(port) == (500, "driver not ready yet"), 20, "it serves at once")
    wait_until(lambda: "has not reported its name yet" in process.log_tail(), 60, "30 s are over")
    assert process.is_running()
    driver = IdentityDriver(folder / "csi.sock").start()
    offered(folder)
    wait_until(lambda: get(port) == (200, "ok"), 20, "it is healthy")
    driver.stop()


def test_a_driver_that_never_listens(launch: Launch, folder: Path) -> None:
    """NRT-015: the exit code is 1 after 30 s."""
    process = launch(*arguments(folder))
    assert ends_with(process, 1)
    assert "error connecting to CSI driver" in process.log_tail()


def test_a_name_that_comes_late_is_waited_for(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-016, NRD-006: errors of the first calls do not end the process."""
    driver.name_errors = 2
    launch(*arguments(folder))
    offered(folder)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 64, "-a"])
def test_a_name_that_is_no_name(
    launch: Launch, folder: Path, driver: IdentityDriver, name: str
) -> None:
    """NRT-017, NRD-008: an invalid name ends the process,
    because the name becomes part of a file name.
    """
    driver.name = name
    assert ends_with(launch(*arguments(folder)), 1)


def test_health_follows_the_socket(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """NR-031, NRT-019, NRT-020, NRT-021, NRT-025, NRD-002, NRD-003: so do readiness and metrics."""
    port = free_port()
    launch(*arguments(folder, f"--http-endpoint=127.0.0.1:{port}"))
    path = offered(folder)
    state = 'csi_node_registration_status{driver_name="d.test",state="ok"}'
    assert f"{state} 0\n" in get(port, "/metrics")[1]
    assert get(port) == (200, "ok")
    assert get(port, "/readyz")[0] == 503
    assert get(port, "/healthz?registered=1")[0] == 503
    notify(path, registered=True)
    assert get(port, "/readyz") == (200, "ok")
    assert f"{state} 1\n" in get(port, "/metrics")[1]
    path.unlink()
    path.write_text("")
    assert get(port)[0] == 500
    path.unlink()
    assert get(port) == (404, "registration socket does not exist")
    wait_until(lambda: get(port) == (200, "ok"), 30, "the socket is made again")


def test_a_socket_of_another_name_is_unhealthy(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-022: the status is 500 and names the other driver."""
    port = free_port()
    launch(*arguments(folder, f"--http-endpoint=127.0.0.1:{port}"))
    path = offered(folder)
    other_driver = IdentityDriver(folder / "csi2.sock", "other.test").start()
    launch(
        *[x.replace("/csi.sock", "/csi2.sock") for x in arguments(folder)[:2]],
        *arguments(folder)[2:],
    )
    offered(folder, "other.test").replace(path)
    assert get(port) == (500, "invalid driver name other.test")
    other_driver.stop()


def test_a_listener_that_hangs_is_unhealthy_in_time(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-023, NRD-007: the probe fails within 15 s. Upstream's registrar can block for 30 s."""
    port = free_port()
    launch(*arguments(folder, f"--http-endpoint=127.0.0.1:{port}"))
    path = offered(folder)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        started = time.monotonic()
        assert get(port)[0] == 500
        assert time.monotonic() - started < 15


def test_a_long_path_is_refused_clearly(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRT-026: the path of a unix socket has at most 107 bytes."""
    long = folder / ("d" * 100)
    long.mkdir()
    process = launch(
        *[x for x in arguments(folder) if "plugin-registration" not in x],
        f"--plugin-registration-path={long}",
    )
    assert ends_with(process, 1)
    assert "longer than 107 bytes" in process.log_tail()


def test_a_driver_that_changed_its_name_ends_the_process(
    launch: Launch, folder: Path, driver: IdentityDriver
) -> None:
    """NRD-005: the process ends, because the new name needs a new registration."""
    process = launch(*arguments(folder))
    path = offered(folder)
    driver.stop()
    driver.name = "renamed.test"
    driver.start()
    assert ends_with(process, 1)
    assert "changed its name from d.test to renamed.test" in process.log_tail()
    assert not path.exists()


def test_both_in_one_process(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """`csi-fleet node` is liveness probe and registrar in one container, and uses little memory."""
    port = free_port()
    flags = arguments(folder, f"--http-endpoint=127.0.0.1:{port}")[1:]
    process = launch("node", *flags)
    path = offered(folder)
    wait_until(lambda: get(port) == (200, "ok"), 20, "the driver is healthy")
    assert get(port, "/registration") == (200, "ok")
    notify(path, registered=True)
    assert get(port, "/readyz") == (200, "ok")
    page = get(port, "/metrics")[1]
    assert {one.name for one in text_string_to_metric_families(page)} == {
        "csi_sidecar_operations_seconds",
        "process_start_time_seconds",
        "csi_node_registration_status",
    }
    driver.ready = False
    assert get(port)[0] == 500
    assert memory_mib(process.pid) < 37
    assert process.stop() == 0
    assert not path.exists()


def test_it_is_light(launch: Launch, folder: Path, driver: IdentityDriver) -> None:
    """It uses less than 35 MiB, and less than 0.1 % of a core when idle."""
    process = launch(*arguments(folder))
    offered(folder)
    assert memory_mib(process.pid) < 35
    wait_until(lambda: cpu_share(process.pid, 5) < 0.001, 90, "it idles")


def test_nobody_answers_at_a_path_without_a_socket(folder: Path) -> None:
    with pytest.raises(RegistrationError, match="UNAVAILABLE"):
        ask(folder / "none.sock", 1.0)
