"""Log lines have klog's layouts, no secrets, and no traceback for external failures."""

from __future__ import annotations

import io
import json
import logging
import re
import time
import warnings
from contextlib import contextmanager

import pytest

from workers.errors import TransientError
from workers.observability.logformat import strip_text
from workers.observability.logging import configure_logging, get_logger, log_fields

LOG = get_logger("workers.x")
KLOG = re.compile(r'^[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w<>.]+:\d+\] ".*?"( [\w.]+=\S.*)?$')


@pytest.fixture(autouse=True)
def restore_logging():
    """Restore the configuration of the standard library's logging, which all tests share."""
    root = logging.getLogger()
    names = ["", "workers", "watcher", "csi_client", "celery.app.trace"]
    levels = {name: logging.getLogger(name).level for name in names}
    handlers, raising = root.handlers[:], logging.raiseExceptions
    # pytest restores the capture of an earlier test, so warnings would seem to be captured still.
    logging.captureWarnings(capture=False)
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    logging.raiseExceptions = raising
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@contextmanager
def _told(message):
    try:
        yield
    except Exception:
        LOG.exception(message)
        raise


def start(log_format="text", verbosity=0):
    stream = io.StringIO()
    configure_logging(log_format, verbosity, stream=stream)
    return stream


def test_text_line_is_klogs():
    stream = start()
    LOG.warning("CreateVolume failed", attempt=2, claim="a/b", is_final=True, size=1.5)
    line = stream.getvalue().rstrip("\n")
    assert KLOG.match(line)
    assert line.startswith("W")
    assert "test_logging.py:" in line
    assert line.endswith('] "CreateVolume failed" claim="a/b" attempt=2 is_final=true size=1.5')


def test_json_line_is_klogs():
    stream = start("json")
    before = time.time()
    LOG.info("bound", claim="a/b")
    line = json.loads(stream.getvalue())
    assert line.pop("caller").startswith("test_logging.py:")
    assert before * 1000 - 1 <= line.pop("ts") <= time.time() * 1000 + 1
    assert line == {"level": "info", "v": 0, "msg": "bound", "claim": "a/b"}


def test_a_line_break_in_a_value_stays_on_the_line():
    stream = start()
    LOG.info("one\ntwo", detail="x\ny")
    assert stream.getvalue().count("\n") == 1


def test_verbosity_decides():
    stream = start(verbosity=4)
    LOG.v(4, "wanted")
    LOG.v(5, "unwanted")
    assert re.findall(r'"(\w+)"', stream.getvalue()) == ["wanted"]


def test_verbosity_level_is_in_the_json_line():
    stream = start("json", verbosity=5)
    LOG.v(3, "detail")
    logging.getLogger("workers.x").debug("more")
    assert [json.loads(line)["v"] for line in stream.getvalue().splitlines()] == [3, 5]


def test_bound_fields_are_on_each_line_inside_only():
    stream = start()
    with log_fields(key="claims|d|a/b|u"):
        LOG.info("in")
        logging.getLogger("workers.x").info("in by logging")
    LOG.info("out")
    inside, inside_too, outside = stream.getvalue().splitlines()
    assert 'key="claims|d|a/b|u"' in inside
    assert 'key="claims|d|a/b|u"' in inside_too
    assert "key=" not in outside


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("fields", [
    {"secrets": {"user": "hush"}}, {"password": "hush"}, {"request": {"node_secrets": ["hush"]}},
    {"headers": {"Authorization": "hush"}}, {"note": "Authorization: Bearer hush"},
    {"url": "redis://user:hush@host/0"}, {"err": OSError("no redis://:hush@host")},
    {"list": [{"api_key": "hush"}]}, {"bearer_token": b"hush"},
    {"raw": b"redis://u:hush@h"}, {"of": {"redis://u:hush@h": 1}}, {"url": "redis://u:p@hush@h"},
    {"url": "sentinel://h/main?db=1&sentinel_password=hush&ssl_ca_certs=/ca"},
    {"made": type("Url", (), {"__str__": lambda _: "redis://u:hush@h"})()},
])  # fmt: skip
def test_secrets_never_get_out(log_format, fields):
    stream = start(log_format, verbosity=9)
    LOG.error("failed", **fields)
    logging.getLogger("csi_client.client").debug("GRPC call", extra=fields)
    assert "hush" not in stream.getvalue()
    assert stream.getvalue().count("***stripped***") == 2


def test_the_name_of_a_secret_is_no_secret():
    stream = start()
    LOG.info("reading", secret_name="creds", secret_namespace="ns", secretRef="r")
    assert "***" not in stream.getvalue()


def test_a_long_text_is_looked_through_once():
    """A driver's error may have any length, and all threads wait for the one that writes a line."""
    before = time.process_time()
    assert strip_text("a." * 20_000) == "a." * 20_000
    assert time.process_time() - before < 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_value_writes_lines_of_its_own_or_speaks_to_a_terminal(log_format):
    """Text from outside is escaped, in fields and in the last line of a traceback."""
    wild = "a\x1b[2J\rI1102 forged\nE1102 forged\x9b2J\u2028b\u202ec\x7f"
    stream = start(log_format)
    with pytest.raises(Exception, match="forged"), _told("bug"):
        raise type("PluginError", (Exception,), {})(wild)
    LOG.info("seen", detail=wild, deep=[wild])
    shown = stream.getvalue()
    assert not set(shown) & set("\x1b\r\x9b\u2028\u202e\x7f")
    assert all(line[0] in "EI{\t" for line in shown.splitlines())
    if log_format == "json":
        assert [json.loads(line).get("detail") for line in shown.splitlines()] == [None, wild]


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("kind", [ValueError, object])
def test_what_has_no_text_does_not_cost_the_line(log_format, kind):
    """A plug-in's own exception class may be defective too."""
    stream = start(log_format)
    LOG.error("failed", claim="a/b", found=type("Broken", (kind,), {"__str__": lambda _: 1})())
    assert "a/b" in stream.getvalue()
    assert "Broken" in stream.getvalue()


def test_json_stays_json_whatever_a_number_is():
    stream = start("json")
    LOG.info("seen", seconds=float("inf"), rates=[float("nan"), 0.5])

    def refuse(word):
        raise ValueError(word)

    line = json.loads(stream.getvalue(), parse_constant=refuse)
    assert (line["seconds"], line["rates"]) == ("inf", ["nan", 0.5])


@pytest.mark.parametrize("error", [OSError("gone"), TransientError("gone"), TimeoutError("gone")])
def test_operational_error_is_one_line(error):
    stream = start()

    def fail():
        raise error

    try:
        fail()
    except (OSError, TransientError):
        LOG.exception("call failed")
        logging.getLogger("kombu").exception("call failed")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert all('err="gone"' in line for line in lines)


def test_error_of_an_outside_library_is_operational():
    """The libraries are recognized by name, because this package imports none of them."""
    stream = start()
    outside = type("SomethingError", (Exception,), {"__module__": "redis.exceptions"})
    with pytest.raises(outside), _told("call failed"):
        raise outside("loading\ndata")
    assert stream.getvalue().rstrip("\n").endswith('err="loading data"')


def test_our_own_mistake_shows_its_traceback():
    stream = start()
    try:
        {}["missing"]
    except KeyError:
        LOG.exception("bug")
    text = stream.getvalue()
    assert "err=\"KeyError: 'missing'\"" in text
    assert '\n\t  File "' in text


def test_traceback_is_a_field_in_json():
    stream = start("json")
    try:
        {}["missing"]
    except KeyError:
        logging.getLogger("workers.x").exception("bug")
    line = json.loads(stream.getvalue())
    assert line["stacktrace"].startswith("Traceback")
    assert line["level"] == "error"


@pytest.mark.parametrize(("verbosity", "shown"), [
    (0, {"ours info", "lib warning"}),
    (5, {"ours info", "ours debug", "lib warning"}),
    (6, {"ours info", "ours debug", "lib warning", "lib info", "noisy warning"}),
    (9, {"ours info", "ours debug", "lib warning", "lib info", "lib debug", "noisy warning"}),
])  # fmt: skip
def test_libraries_are_tame(verbosity, shown):
    stream = start(verbosity=verbosity)
    logging.getLogger("csi_client.client").debug("ours debug")
    logging.getLogger("watcher.main").info("ours info")
    logging.getLogger("celery.worker").info("lib info")
    logging.getLogger("kombu").debug("lib debug")
    logging.getLogger("kubernetes").warning("lib warning")
    logging.getLogger("celery.app.trace").warning("noisy warning")
    assert set(re.findall(r'\] "([^"]*)"', stream.getvalue())) == shown


def test_extra_of_a_record_becomes_fields():
    stream = start(verbosity=5)
    extra = {"method": "/csi.v1.Identity/Probe"}
    logging.getLogger("csi_client.client").debug("GRPC call", extra=extra)
    assert stream.getvalue().rstrip("\n").endswith('"GRPC call" method="/csi.v1.Identity/Probe"')


def test_library_lines_name_the_library():
    stream = start()
    logging.getLogger("celery.beat").warning("late by %d", 3)
    assert stream.getvalue().rstrip("\n").endswith('"late by 3" logger="celery.beat"')


def test_what_a_library_calls_fields_is_its_own_affair():
    """Only the `fields` of csi-fleet's logger are expanded; another's would lose the line."""
    stream = start()
    logging.getLogger("celery.beat").warning("late", extra={"fields": 3})
    assert stream.getvalue().rstrip("\n").endswith('"late" fields=3 logger="celery.beat"')


def test_python_warnings_are_lines_too():
    stream = start()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    assert "old call" in stream.getvalue()


def test_a_broken_stream_stops_nothing():
    stream = start()
    stream.close()
    LOG.info("nobody reads this")
    logging.getLogger("workers.x").info("nor this")


def test_configuring_again_writes_each_line_once():
    start()
    stream = start()
    logging.getLogger("workers.x").info("once")
    assert stream.getvalue().count("once") == 1


def test_a_level_between_info_and_debug_is_of_our_packages_alone():
    """Each klog verbosity has a level, and -v=20 has one too: 0 would mean the root logger's."""
    stream = start(verbosity=20)
    LOG.v(20, "finest")
    assert '"finest"' in stream.getvalue()
    assert logging.getLogger("workers").level == 1


def test_the_place_is_that_of_whoever_writes():
    """It is never a line of the logger's own module, whichever method was called."""
    stream = start("json", verbosity=1)
    LOG.v(1, "one")
    LOG.info("two")
    LOG.warning("three")
    LOG.error("four")
    with pytest.raises(OSError, match="five"), _told("five"):
        raise OSError("five")
    places = [
        json.loads(line)["caller"].partition(":")[0] for line in stream.getvalue().splitlines()
    ]
    assert places == ["test_logging.py"] * 5


def test_no_field_takes_the_place_of_a_lines_own():
    """A field may have any name, even one that `logging` or klog's JSON uses itself."""
    stream = start("json")
    LOG.info("true", name="n", args="a", message="m", level="error", msg="false")
    line = json.loads(stream.getvalue())
    assert (line["msg"], line["level"], line["name"], line["args"]) == ("true", "info", "n", "a")


def test_a_sign_of_formatting_is_only_a_letter():
    stream = start()
    LOG.info("100 % of %s", share="50 %d")
    assert stream.getvalue().rstrip("\n").endswith('"100 % of %s" share="50 %d"')
