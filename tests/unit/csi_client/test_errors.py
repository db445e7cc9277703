"""Error texts, spellings and finality (P-410, P-411, P-904, D-024)."""

from __future__ import annotations

import grpc
import pytest

from csi_client.errors import (
    CODE_NAMES,
    CsiError,
    NoStatusError,
    UndecodableAnswerError,
    code_name,
    from_status,
)

# P-410, column "otherwise": True is Finished, False is InBackground.
FINALITY = [
    (1, "Canceled", False),
    (2, "Unknown", True),
    (3, "InvalidArgument", True),
    (4, "DeadlineExceeded", False),
    (5, "NotFound", True),
    (6, "AlreadyExists", True),
    (7, "PermissionDenied", True),
    (8, "ResourceExhausted", True),
    (9, "FailedPrecondition", True),
    (10, "Aborted", False),
    (11, "OutOfRange", True),
    (12, "Unimplemented", True),
    (13, "Internal", True),
    (14, "Unavailable", False),
    (15, "DataLoss", True),
    (16, "Unauthenticated", True),
    (99, "Code(99)", True),
]


@pytest.mark.parametrize(("code", "name", "is_final"), FINALITY, ids=[n for _, n, _ in FINALITY])
def test_status_table(code: int, name: str, is_final: bool) -> None:
    error = from_status(code, "<d>", rpc="/csi.v1.Controller/CreateVolume")
    assert str(error) == f"rpc error: code = {name} desc = <d>"
    assert (error.code, error.code_name, error.details) == (code, name, "<d>")
    assert error.is_final is is_final
    assert not error.from_transport


def test_table_covers_every_status_of_the_library() -> None:
    assert set(CODE_NAMES) == {status.value[0] for status in grpc.StatusCode}


@pytest.mark.parametrize("text", ["Deadline Exceeded", "Stream removed (Deadline Exceeded)"])
def test_p411_own_deadline_reads_like_the_go_client(text: str) -> None:
    error = from_status(4, text, rpc="")
    assert str(error) == "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    assert error.from_transport
    assert not error.is_final


def test_deadline_reported_by_the_driver_keeps_its_text() -> None:
    error = from_status(4, "backend: deadline exceeded after 3s", rpc="")
    assert error.details == "backend: deadline exceeded after 3s"
    assert not error.from_transport


@pytest.mark.parametrize(
    ("details", "is_final"),
    [
        pytest.param("CLIENT: Received message larger than max (5 vs. 4)", False, id="answer"),
        pytest.param("CLIENT: Sent message larger than max (5 vs. 4)", True, id="request"),
        pytest.param("SERVER: Received message larger than max (5 vs. 4)", True, id="refused"),
        pytest.param("SERVER: Sent message larger than max (5 vs. 4)", False, id="unsendable"),
        pytest.param("grpc: received message larger than max (5 vs. 4)", True, id="go refused"),
        pytest.param("trying to send message larger than max (5 vs. 4)", False, id="go answer"),
        pytest.param("received trailing metadata size exceeds limit", False, id="long status"),
    ],
)
def test_d024_message_limits_are_told_from_a_full_pool(details: str, is_final: bool) -> None:
    """A lost answer may mean that a volume exists, but a refused request cannot."""
    error = from_status(8, details, rpc="")
    assert error.from_transport
    assert error.is_final is is_final


@pytest.mark.parametrize(
    ("code", "details"),
    [
        pytest.param(2, "Stream removed", id="unknown"),
        pytest.param(13, "Received RST_STREAM with error code 2", id="internal"),
    ],
)
def test_broken_stream_is_not_the_drivers_verdict(code: int, details: str) -> None:
    """The driver's state is unknown, whatever status code the library chose."""
    error = from_status(code, details, rpc="")
    assert error.from_transport
    assert not error.is_final


@pytest.mark.parametrize(
    ("code", "details", "from_transport"),
    [
        pytest.param(14, "Socket closed", True, id="closed"),
        pytest.param(14, "failed to connect to all addresses; last error: x", True, id="nobody"),
        pytest.param(14, "the pool is rebuilt", False, id="the driver's own word"),
        pytest.param(1, "CANCELLED", True, id="a server that stops"),
        pytest.param(14, "Stream removed (GOAWAY received; Error code: 0)", True, id="one more"),
        pytest.param(1, "driver says cancelled", False, id="cancelled by the driver"),
        pytest.param(13, "Socket closed", False, id="quoted by the driver"),
    ],
)
def test_a_lost_connection_is_not_the_drivers_verdict(
    code: int, details: str, from_transport: bool
) -> None:
    """UNAVAILABLE from the library: the driver was not reached, or its progress is unknown."""
    assert from_status(code, details, rpc="").from_transport is from_transport


def test_unknown_status_number_is_unwrapped() -> None:
    """P-904: `Code(<n>)`; the library hides the number in the text of UNKNOWN."""
    error = from_status(2, 'Server sent unknown code 42 and details "a "b" c"', rpc="")
    assert str(error) == 'rpc error: code = Code(42) desc = a "b" c'
    assert error.is_final


def test_no_status_is_plain_text_and_not_final() -> None:
    error = NoStatusError("driver name is empty")
    assert str(error) == "driver name is empty"
    assert (error.code, error.code_name, error.is_final) == (None, "unknown-non-grpc", False)
    assert isinstance(error, CsiError)


def test_undecodable_answer_may_hold_a_volume() -> None:
    error = UndecodableAnswerError("garbage", rpc="/x")
    assert (error.code_name, error.is_final) == ("Internal", False)
    assert error.from_transport, "the driver never said Internal"


def test_p011_metric_label_without_status() -> None:
    assert code_name(None) == "unknown-non-grpc"
    assert code_name(0) == "OK"


def test_an_error_keeps_its_text_in_one_place() -> None:
    """SEC-7: text that `scrub` removes from `details` must not remain in `args`."""
    for error in (CsiError(13, "hunter2"), NoStatusError("hunter2")):
        assert error.args == ()
        error.details = "***"
        assert "hunter2" not in repr(error) + str(error)
    assert not CsiError(13, "x").from_transport
