"""One call over a fake channel: how it is sent, and how each outcome is handled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from csi_client import client as module
from csi_client import connection, errors
from csi_client import messages as csi
from csi_client.client import DEFAULT_TIMEOUT_SECONDS, CsiClient
from csi_client.connection import CsiAddressError

ANSWER = csi.ProbeResponse().SerializeToString()


class Failed(grpc.RpcError):
    """An error as gRPC raises it: it is also the call."""

    def __init__(self, status: grpc.StatusCode, details: str | None) -> None:
        super().__init__()
        self._status, self._details = status, details

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str | None:
        return self._details


class Call:
    """A running call that takes the channel's `seconds` and ends as the channel says."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.is_cancelled = channel, False

    def result(self, timeout: float | None = None) -> bytes:
        self.channel.told.append(("waits", timeout))
        if self.is_cancelled:
            raise grpc.FutureCancelledError
        if timeout is not None and timeout < self.channel.seconds:
            raise grpc.FutureTimeoutError
        return self.channel.end()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.channel.told.append(("cancelled",))


class Channel:
    """A channel that returns `answers` in turn, the last forever; `told` records its uses."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.answers: list[Any] = [ANSWER]
        self.seconds = 0.0
        self.is_closed = False

    def end(self) -> bytes:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return bytes(found)

    def unary_unary(self, rpc: str, _request: Any, _answer: Any) -> Any:
        self.told.append(("method", rpc))

        def direct(_payload: bytes, timeout: float) -> bytes:
            self.told.append(("direct", timeout))
            return self.end()

        def future(_payload: bytes, timeout: float) -> Call:
            self.told.append(("future", timeout))
            return Call(self)

        direct.future = future  # type: ignore[attr-defined]
        return direct

    def close(self) -> None:
        self.is_closed = True


class Link:
    """The connection; `looks` counts how often its state was requested."""

    is_connected, losses = False, 0

    def __init__(self, _channel: Channel) -> None:
        self.looks, self.is_closed = 0, False

    def look(self) -> bool:
        self.looks += 1
        return False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, channel: Channel) -> Any:
    """Return a function that creates a client over the channel, with the given options."""
    monkeypatch.setattr(module, "open_channel", lambda *_, **__: channel)
    monkeypatch.setattr(module, "Link", Link)
    return lambda **options: CsiClient("/run/csi.sock", **options)


def ask(client: CsiClient, **options: Any) -> Any:
    return client.call("Identity/Probe", csi.ProbeRequest(), csi.ProbeResponse, **options)


def test_tcp_is_for_who_asks_for_it() -> None:
    """P-002: in the driver's pod only a unix socket is correct."""
    with pytest.raises(CsiAddressError):
        CsiClient("driver.example.org:9000")


def test_p004_a_driver_that_says_nothing_is_ready(make: Any, channel: Channel) -> None:
    """P-004: an absent `ready` means yes."""
    assert make().probe() is True
    for ready in (True, False):
        answer = csi.ProbeResponse()
        answer.ready.value = ready
        channel.answers = [answer.SerializeToString()]
        assert make().probe() is ready


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        pytest.param({}, DEFAULT_TIMEOUT_SECONDS, id="P-413: ten seconds"),
        pytest.param({"timeout_seconds": 3}, 3, id="the client's"),
        pytest.param(
            {"timeout_seconds": 3, "timeouts_by_rpc": {"Identity/Probe": 4}}, 4, id="the method's"
        ),
        pytest.param({"timeouts_by_rpc": {"Node/Other": 4}}, 10, id="not another's"),
    ],
)
def test_whose_deadline_holds(make: Any, channel: Channel, given: Any, seconds: float) -> None:
    """The call's own deadline takes precedence, even if it is zero."""
    client = make(**given)
    client.probe()
    client.probe(timeout_seconds=5)
    client.probe(timeout_seconds=0)
    assert [one[1] for one in channel.told if one[0] == "direct"] == [seconds, 5, 0]


def test_a_method_is_prepared_once(make: Any, channel: Channel) -> None:
    """The channel creates the method's stub once for all calls."""
    client = make()
    client.probe()
    client.probe()
    assert channel.told.count(("method", "/csi.v1.Identity/Probe")) == 1


@pytest.mark.parametrize(
    ("slow_after", "takes", "is_told"),
    [
        pytest.param(2, 5, True, id="slow"),
        pytest.param(2, 1, False, id="quick"),
        pytest.param(10, 50, False, id="not before the deadline"),
        pytest.param(11, 50, False, id="after the deadline"),
    ],
)
@pytest.mark.parametrize("is_guarded", [False, True], ids=["direct", "future"])
def test_a_slow_call_is_told_once(
    make: Any, channel: Channel, slow_after: float, takes: float, is_told: bool, is_guarded: bool
) -> None:
    """Only a call that can be slow is reported, and its answer is still waited for."""
    told: list[int] = []
    channel.seconds = takes
    options: Any = {"on_slow": lambda: told.append(1), "slow_after_seconds": slow_after}
    answer = guarded(make(), lambda: True, **options) if is_guarded else ask(make(), **options)
    assert answer == csi.ProbeResponse()
    assert told == ([1] if is_told else [])


@pytest.mark.parametrize(("on_slow", "way"), [(None, "direct"), (lambda: None, "future")])
def test_only_a_call_that_is_not_just_waited_for_has_a_future(
    make: Any, channel: Channel, on_slow: Any, way: str
) -> None:
    """A future costs an extra thread and several context switches."""
    client = make()
    ask(client, on_slow=on_slow, slow_after_seconds=2)
    guarded(client, lambda: True, on_slow=on_slow, slow_after_seconds=2)
    ways = [one[0] for one in channel.told if one[0] != "waits"]
    assert ways == ["method", way, "future"]


def guarded(client: CsiClient, is_allowed: Any, **options: Any) -> Any:
    request = csi.ProbeRequest()
    return client._call(
        "Identity/Probe", request, csi.ProbeResponse, 10, is_allowed=is_allowed, **options
    )


def test_a_call_that_is_allowed_is_found_while_it_runs_only(make: Any, channel: Channel) -> None:
    """Otherwise calls that ended long ago would be kept, and cancelled, forever."""
    client, seen = make(), []
    channel.seconds = 5

    def on_slow() -> None:
        client.recheck()
        seen.append(len(client._guarded))

    guarded(client, lambda: True, on_slow=on_slow, slow_after_seconds=2)
    assert (seen, client._guarded) == ([1], {})
    assert ("cancelled",) not in channel.told


def test_a_call_that_is_not_allowed_any_more_is_cancelled(make: Any, channel: Channel) -> None:
    """COR-6: at its start or at the next check; the error is not the driver's verdict."""
    client = make()
    for answers in ([False], [True, False]):
        allowed = iter(answers)
        channel.seconds = 5
        with pytest.raises(errors.CsiError) as caught:
            guarded(
                client,
                lambda allowed=allowed: next(allowed),
                on_slow=client.recheck,
                slow_after_seconds=10 if len(answers) == 1 else 2,
            )
        assert (caught.value.code, caught.value.from_transport) == (errors.CANCELLED, True)
        assert client._guarded == {}
        assert channel.told[-1] == ("waits", None), "until its end"


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        (Failed(grpc.StatusCode.NOT_FOUND, "gone"), errors.NOT_FOUND, "gone"),
        (Failed(grpc.StatusCode.INTERNAL, None), errors.INTERNAL, ""),
        (ValueError("closed"), None, "the connection to the driver is closed"),
    ],
    ids=["status", "no text", "closed"],
)
def test_who_judges_a_failure_finds_the_connection_looked_at(
    make: Any, channel: Channel, end: Exception, code: int | None, text: str
) -> None:
    """It tells whether the connection is lost. A success requests no state."""
    client = make()
    client.probe()
    assert client._link.looks == 0
    channel.answers = [end]
    with pytest.raises(errors.CsiError) as caught:
        client.probe()
    assert (caught.value.code, caught.value.details) == (code, text)
    assert client._link.looks == 1


def test_p011_each_call_is_observed_with_its_time(
    make: Any, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-011: method, status in Go's spelling, and seconds; this includes calls never sent."""
    ticks = iter([100.0, 100.5, 200.0, 203.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    seen: list[Any] = []
    client = make(observer=lambda *call: seen.append(call))
    client.probe()
    channel.answers = [ValueError("closed")]
    with pytest.raises(errors.NoStatusError):
        client.probe()
    rpc = "/csi.v1.Identity/Probe"
    assert seen == [(rpc, "OK", 0.5), (rpc, "unknown-non-grpc", 3.0)]


def test_a_closed_client_watches_no_connection(make: Any, channel: Channel) -> None:
    """Its channel is closed too."""
    client = make()
    client.close()
    assert (client._link.is_closed, channel.is_closed) == (True, True)


@pytest.mark.parametrize("answer", [csi.ListVolumesResponse, csi.ListSnapshotsResponse])
@pytest.mark.parametrize(
    ("tokens", "pages"), [([""], 1), (["a", ""], 2), (["a", "b", ""], 3), (["a", "b", "a"], None)]
)
def test_pages_end_with_the_driver_s_last_or_with_a_token_it_repeats(
    make: Any, channel: Channel, answer: Any, tokens: list[str], pages: int | None
) -> None:
    """A driver that repeats a page token would make the list endless."""
    channel.answers = [answer(next_token=token).SerializeToString() for token in tokens]
    client = make()
    listed = client.list_volumes if answer is csi.ListVolumesResponse else client.list_snapshots
    if pages is None:
        with pytest.raises(errors.UndecodableAnswerError, match="repeats a page token"):
            list(listed())
    else:
        assert len(list(listed())) == pages


def test_p002_how_a_channel_is_set_up() -> None:
    """P-002: no hidden retries, idle timeout, ping or proxy, and quick reconnects.

    Over TCP, unacknowledged packets end the connection: gRPC takes that timeout from keepalive,
    whose ping is 24 days away.
    """
    never = 2147483647
    plain = {
        "grpc.max_receive_message_length": 7,
        "grpc.max_send_message_length": -1,
        "grpc.max_metadata_size": 1048576,
        "grpc.absolute_max_metadata_size": 1048576,
        "grpc.enable_retries": 0,
        "grpc.service_config_disable_resolution": 1,
        "grpc.initial_reconnect_backoff_ms": 200,
        "grpc.min_reconnect_backoff_ms": 200,
        "grpc.max_reconnect_backoff_ms": 1000,
        "grpc.client_idle_timeout_ms": never,
        "grpc.keepalive_time_ms": never,
        "grpc.enable_http_proxy": 0,
    }
    clients = set()
    named = {"grpc.ssl_target_name_override": "driver.example.org"}
    local = {"grpc.default_authority": "localhost"}
    for is_unix, server_name, more in (
        (False, None, {}), (False, "driver.example.org", named), (True, None, local)
    ):  # fmt: skip
        found = dict(connection._options(is_unix, server_name, max_receive_bytes=7))
        clients.add(found.pop("csi-fleet.client"))
        silent = {"grpc.keepalive_time_ms": never - 1, "grpc.keepalive_timeout_ms": 20000}
        assert found == plain | more | ({} if is_unix else silent)
    assert len(clients) == 3, "no connection of another client"
