"""The diagnostics server, tested over real local sockets."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import wait_until
from workers.config.settings import HttpSettings
from workers.errors import ConfigError
from workers.observability.exposition import Exposition
from workers.observability.health import LeaderHealth
from workers.observability.http import Checks, DiagnosticsServer
from workers.observability.metrics import Metrics


@contextlib.contextmanager
def serving(settings=None, **checks):
    settings = settings or HttpSettings("127.0.0.1:0")
    server = DiagnosticsServer(settings, Exposition(Metrics().registry), Checks(**checks))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def get(server, path, method="GET", host="127.0.0.1", **headers):
    connection = http.client.HTTPConnection(host, server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), response.headers


def leader_settings():
    return HttpSettings("127.0.0.1:0", leader_health=True)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("is_leader", "age", "status", "body"), [
    pytest.param(False, 0, 200, b"ok", id="C-143 standby"),
    pytest.param(True, 1, 200, b"ok", id="C-143 healthy leader"),
    pytest.param(True, 36, 500, b"internal server error: failed election to renew leadership on "
                 b"lease l\n", id="C-143 renewal older than lease + 20 s"),
])  # fmt: skip
def test_leader_health(is_leader, age, status, body):
    clock = Clock()
    leader = LeaderHealth("l", 15, clock)
    if is_leader:
        leader.renewed()
    clock.now += age
    with serving(leader_settings(), leader=leader.check) as server:
        assert get(server, "/healthz/leader-election")[:2] == (status, body)


def test_c143_without_leader_election_the_path_is_unknown():
    with serving() as server:
        assert get(server, "/healthz/leader-election")[0] == 404


@pytest.mark.parametrize(("path", "check"), [("/healthz", "live"), ("/readyz", "ready")])
def test_probes(path, check):
    complaints = [""]
    with serving(**{check: lambda: complaints[0]}) as server:
        assert get(server, path)[:2] == (200, b"ok")
        complaints[0] = "consumer: no progress for 60 s"
        assert get(server, path)[:2] == (503, b"consumer: no progress for 60 s\n")


def test_metrics_path_and_format():
    with serving(HttpSettings("127.0.0.1:0", metrics_path="/m")) as server:
        assert get(server, "/metrics")[0] == 404
        status, body, headers = get(server, "/m?x=1")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert list(text_string_to_metric_families(body.decode()))
        accept = "application/openmetrics-text; version=1.0.0"
        _, body, headers = get(server, "/m", Accept=accept)
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


def test_scrapes_are_counted():
    with serving() as server:
        get(server, "/metrics")
        body = get(server, "/metrics")[1].decode()
    assert 'promhttp_metric_handler_requests_total{code="200"} 1.0' in body
    assert "promhttp_metric_handler_requests_in_flight 1.0" in body


def test_compressed_on_request():
    with serving() as server:
        _, body, headers = get(server, "/metrics", **{"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert b"process_cpu_seconds_total" in gzip.decompress(body)


def test_head_has_no_body():
    with serving() as server:
        status, body, headers = get(server, "/healthz", method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "2")


def test_other_methods_are_refused():
    with serving() as server:
        assert get(server, "/metrics", method="POST")[0] == 501


def test_a_failing_check_is_an_error_not_an_end(capsys):
    def broken():
        raise KeyError("bug")

    with serving(ready=broken) as server:
        assert get(server, "/readyz")[:2] == (500, b"internal server error\n")
        assert get(server, "/healthz")[0] == 200


def test_a_silent_client_holds_up_nobody():
    with serving() as server, socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "/healthz")[0] == 200


@pytest.mark.parametrize("path", ["/debug/pprof/", "/debug/pprof/goroutine"])
def test_profiles_need_the_flag(path):
    with serving() as server:
        assert get(server, path)[0] == 404


@pytest.fixture
def profiled():
    with serving(HttpSettings("127.0.0.1:0", pprof=True)) as server:
        yield server


def test_profile_pages(profiled, monkeypatch):
    monkeypatch.setattr("sys.argv", ["csi-fleet", "--redis-url=redis://me:hush@host/0"])
    assert b"profile?seconds=30" in get(profiled, "/debug/pprof/")[1]
    assert b"MainThread" in get(profiled, "/debug/pprof/goroutine")[1]
    assert b"objects in all" in get(profiled, "/debug/pprof/heap")[1]
    assert get(profiled, "/debug/pprof/cmdline")[1] == (
        b"csi-fleet\0--redis-url=redis://***stripped***@host/0"
    )
    assert get(profiled, "/debug/pprof/trace")[0] == 404


def test_sampled_profile_shows_other_threads(profiled):
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="waiter")
    thread.start()
    try:
        status, body, _ = get(profiled, "/debug/pprof/profile?seconds=0.1")
    finally:
        done.set()
        thread.join()
    assert status == 200
    assert b"Event.wait (threading.py)" in body
    assert body.split(b"\n")[0].rpartition(b" ")[2].isdigit()


@pytest.mark.parametrize("seconds", ["x", "0", "-1", "121", "nan", "inf"])
def test_profile_length_is_checked(profiled, seconds):
    assert get(profiled, f"/debug/pprof/profile?seconds={seconds}")[0] == 400


def test_one_profile_at_a_time(profiled):
    with profiled._profiling:
        assert get(profiled, "/debug/pprof/profile?seconds=1")[0] == 503


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(("endpoint", "hosts"), [
    (":0", ["127.0.0.1", "::1"]), ("[::1]:0", ["::1"]), ("localhost:0", ["localhost"]),
])  # fmt: skip
def test_listens_where_go_would(endpoint, hosts):
    if "::1" in hosts and not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    with serving(HttpSettings(endpoint)) as server:
        assert [get(server, "/healthz", host=host)[0] for host in hosts] == [200] * len(hosts)


@pytest.mark.parametrize("endpoint", ["8080", "host.invalid:80", "192.0.2.1:0"])
def test_f014_an_address_nobody_can_listen_on_ends_the_start(endpoint):
    server = DiagnosticsServer(HttpSettings(endpoint), Exposition())
    with pytest.raises(ConfigError, match="Failed to start HTTP server") as caught:
        server.start()
    assert caught.value.exit_code == 255


def test_f014_a_taken_port_ends_the_start():
    with serving(HttpSettings(":0")) as first:
        second = DiagnosticsServer(HttpSettings(f":{first.port}"), Exposition())
        with pytest.raises(ConfigError, match="Address already in use") as caught:
            second.start()
    assert caught.value.exit_code == 255


def test_the_port_is_free_after_stop():
    with serving() as first:
        port = first.port
    first.stop()
    with serving(HttpSettings(f"127.0.0.1:{port}")) as second:
        assert get(second, "/healthz")[0] == 200


def test_sec_9_a_flood_of_slow_clients_gets_no_more_threads_and_stops_no_probe():
    """Each client once held a thread for as long as it sent a byte now and then."""
    with serving() as server, contextlib.ExitStack() as stack:
        before, flood = threading.active_count(), []
        for _ in range(100):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            slow.sendall(b"GET /healthz HTTP/1.1\r\n")
            flood.append(slow)

        def is_bounded():
            for slow in flood:
                with contextlib.suppress(OSError):  # the client was dropped
                    slow.sendall(b"a")
            return threading.active_count() - before <= 32

        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        client.request("GET", "/healthz")
        assert client.getresponse().status == 200
        client.close()
        # The threads of dropped clients end as soon as they run.
        wait_until(is_bounded, 30, "the oldest are gone")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("", 401), ("Bearer wrong", 401), ("Basic good", 401), ("Bearer good", 200)],
)
def test_metrics_are_for_whom_the_api_server_lets_read_them(authorization, status):
    """Probes stay open, because the kubelet has no token."""
    with serving(may_read=lambda token: token == "good") as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        client.request("GET", "/metrics", headers={"Authorization": authorization})
        assert client.getresponse().status == status
        client.close()
        client.request("GET", "/healthz")
        assert client.getresponse().status == 200
        client.close()
