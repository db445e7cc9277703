"""No exchange that is interrupted leaves its answer to the next command of that connection."""

from __future__ import annotations

import sys

import pytest

from tests.support.redis_server import RedisServer
from workers.queue.connection import connect, execute

pytestmark = pytest.mark.integration

# Far more lines than any of the exchanges has.
MOST_LINES = 3000
OURS = ("/redis/", "workers/queue/")


@pytest.fixture(scope="module")
def port(redis_binary, tmp_path_factory):
    server = RedisServer(redis_binary, tmp_path_factory.mktemp("interrupted")).start()
    yield server.port
    server.kill()


def together(client, transaction):
    with client.pipeline(transaction=transaction) as pipe:
        pipe.echo("first")
        pipe.echo("second")
        pipe.execute()


EXCHANGES = {
    "ours": lambda client: execute(client, "ECHO", "first"),
    "the library's": lambda client: client.echo("first"),
    "a pipeline": lambda client: together(client, transaction=False),
    "a transaction": lambda client: together(client, transaction=True),
}


def is_end_of_object(frame):
    """Python only reports what is raised there."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupted(exchange, client, line):
    """Ends the exchange before this line of it, as a signal would; False when it has fewer."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not any(part in frame.f_code.co_filename for part in OURS) or is_end_of_object(frame):
            return None
        if event == "line":
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        exchange(client)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count >= line


@pytest.mark.parametrize("how", EXCHANGES)
def test_an_interrupted_exchange_leaves_no_answer_behind(port, how):
    """Before whichever line: the next command gets its own answer."""
    wrong = []
    for line in range(1, MOST_LINES):
        client = connect(f"redis://127.0.0.1:{port}/0")
        execute(client, "PING")
        is_interrupted = interrupted(EXCHANGES[how], client, line)
        if execute(client, "ECHO", "mine") != b"mine":
            wrong.append(line)
        client.close()
        if not is_interrupted:
            break
    assert line > 20
    assert wrong == []
