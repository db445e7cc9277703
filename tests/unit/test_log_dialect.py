"""Logging has one form (STR-10): a constant message and fields, so that lines can be counted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("csi_client", "watcher", "workers")
# The logger itself, and the package that imports nothing of csi-fleet and uses `extra`.
STANDARD_LIBRARY = {
    "workers/observability/logging.py",
    "csi_client/answers.py",
    "csi_client/blockserver.py",
    "csi_client/client.py",
    # It filters kombu's own log lines.
    "workers/brokerscripts.py",
}
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log", "v"}


def offences(source: str, *, may_import: bool = False) -> list[str]:
    """Return the lines of a module that log in another form."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "logging.getLogger":
            found += [] if may_import else [f"{node.lineno}: the standard library's logger"]
        elif isinstance(node, ast.Call) and _is_log_call(node.func):
            message, rest = node.args[0], node.args[1:]
            if node.func.attr == "v":
                message, rest = node.args[1], node.args[2:]
            if rest or not _is_constant(message):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def _is_log_call(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute) or called.attr not in METHODS:
        return False
    logger = ast.unparse(called.value)
    return logger == "_log" or logger.startswith("get_logger(")


def _is_constant(message: ast.expr) -> bool:
    """Return True for a text or the name of one, such as `VAC_OFF_MESSAGE`."""
    if isinstance(message, ast.Name):
        return message.id.isupper()
    return isinstance(message, ast.Constant) and "%" not in message.value


def test_every_line_is_a_constant_message_with_fields():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for line in offences(
            path.read_text("utf-8"),
            may_import=str(path.relative_to(ROOT)) in STANDARD_LIBRARY,
        )
    }
    assert found == set()


def test_what_is_started_by_name_logs_as_one_of_ours():
    """In `python -m workers`, `__name__` is `__main__`, which looks like a library's logger."""
    started = [path for package in PACKAGES for path in (ROOT / package).rglob("__main__.py")]
    assert started
    assert [path for path in started if "get_logger(__name__)" in path.read_text("utf-8")] == []


@pytest.mark.parametrize(
    "line",
    [
        "_log = logging.getLogger(__name__)",
        '_log.warning("claim %s failed", name)',
        '_log.warning("claim %s failed" % name)',
        '_log.warning(f"claim {name} failed")',
        '_log.warning("claim " + name)',
        "_log.v(4, text)",
        '_log.error("failed: {}".format(name))',
    ],
)
def test_the_check_sees_each_other_way(line: str):
    """The check above can fail."""
    assert offences(line) != []


def test_the_check_takes_the_one_way():
    source = '_log = get_logger(__name__)\n_log.v(4, "pass ended", key=key)\n_log.info(NOT_SENT)\n'
    assert offences(source) == []
