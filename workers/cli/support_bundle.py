"""`csi-fleet support-bundle`: prints a document for troubleshooting that can be sent to others.

The document is text, so its sender can read it first. It consists of other commands' output; it
contains no whole objects, and no Secret is read. `scrubbed` replaces everything that looks like a
credential in messages from drivers and users.
"""

from __future__ import annotations

import platform
import re
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from workers.cli import doctor, explaining, failed, pending, status, terminal
from workers.errors import ConfigError
from workers.explain import nouns
from workers.explain.text import as_json
from workers.explain.words import rfc3339
from workers.kube import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from workers.cli.pending import Group
    from workers.cli.tools import Tools

KIND: Final = "SupportBundle"
# The number of causes that the document illustrates with one object and its history.
EXPLAINED: Final = 20
FAILED: Final = 500
HIDDEN: Final = "[hidden]"
# A driver's message is cut to this length before it is searched. Every pattern is bounded too, so
# the time for a search is limited.
LONGEST: Final = 8_000
_WORDS: Final = (
    r"(?:pass(?:word|wd|phrase)?|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"credentials?|login|pwd|key)"
)
_NAME: Final = rf"[\w.-]{{0,80}}?{_WORDS}[\w.-]{{0,80}}"
# Go's %q escapes the quotes of a string inside another string.
_QUOTED: Final = r"\\+\".*?\\+\"|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
_PATTERNS: Final = (
    # A private key or certificate, up to its end marker or to the end of the text.
    (re.compile(r"-----BEGIN [\s\S]*?(?:-----END [A-Z0-9 ]+-----|\Z)"), HIDDEN),
    # The credentials in a URL, with or without a scheme.
    (re.compile(r"(?<=://)\S{1,256}@"), f"{HIDDEN}@"),
    (re.compile(r"(?<![\w./-])[\w.-]{1,128}:[^\s/@:]{1,256}@(?=[\w.-])"), f"{HIDDEN}@"),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    # --secret x
    (re.compile(rf"(?<![\w-])(--?{_NAME}\s{{1,8}})[^\s,;&\"']+", re.IGNORECASE), rf"\1{HIDDEN}"),
    # password=x, "token": "x"; not `secret shop/key`, which is a name.
    (
        re.compile(
            rf"(?<![\w./-])(\\*[\"']?{_NAME}\\*[\"']?\s{{0,8}}[=:]\s{{0,8}})"
            rf"({_QUOTED}|[^\s,;&\"']+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # JSON web tokens, and strings that are as long and random as a key.
    (re.compile(r"\beyJ[\w-]{4,}\.[\w-]{4,}\.[\w-]*"), HIDDEN),
    (
        re.compile(r"(?<![\w/+])(?=[\w/+]*\d)(?=[\w/+]*[A-Z])(?=[\w/+]*[a-z])[\w/+]{32,}={0,2}"),
        HIDDEN,
    ),
)


def run(tools: Tools) -> int:
    """Run the command; return 0 even if parts could not be read; the document reports those.

    Raises:
        ConfigError: an argument was given.
    """
    if tools.settings.arguments:
        raise ConfigError("support-bundle takes no argument. Run csi-fleet support-bundle > FILE")
    found = scrubbed(gather(tools), secrets_of(tools))
    terminal.write_document(tools.settings.tool.output or "yaml", KIND, found)
    sys.stderr.write(
        "csi-fleet support-bundle: the output contains names of namespaces, claims, drivers and "
        "nodes. Read it before you send it\n"
    )
    return 0


def gather(tools: Tools) -> dict[str, Any]:
    """Return every part of the document, keyed by its name."""
    groups: list[Group] = []

    def waiting() -> Any:
        found, missed = pending.gather(tools)
        groups.extend(pending.grouped(found))
        return pending.as_fields(groups, missed)

    parts: dict[str, Callable[[], Any]] = {
        "doctor": lambda: _checked(tools),
        "status": lambda: status.gather(tools),
        "pending": waiting,
        "failed": lambda: failed.items(tools)[:FAILED],
        "explained": lambda: list(_explained(tools, groups)),
        "drivers": tools.registry.alive,
        "classes": lambda: [_class(one) for one in tools.kube.list(paths.STORAGE_CLASSES)],
    }
    made = {
        "made": rfc3339(time.time()),
        "version": version("csi-fleet"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return made | {name: _tried(part) for name, part in parts.items()}


def secrets_of(tools: Tools) -> list[str]:
    """Return the credentials that were given to this command itself."""
    redis = tools.settings.redis
    keys = (part for line in redis.record_keys for part in (line, *line.split()))
    return [one for one in (redis.password, redis.sentinel_password, *keys) if one]


def scrubbed(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return a copy of the value with every string that looks like a credential replaced.

    Args:
        value: a part of a document.
        secrets: strings that are replaced wherever they occur.
    """
    known = sorted(secrets, key=len, reverse=True)
    if isinstance(value, dict):
        return {_scrubbed(str(name), known): scrubbed(one, known) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(one, known) for one in value]
    return _scrubbed(value, known) if isinstance(value, str) else value


def _scrubbed(text: str, secrets: list[str]) -> str:
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} [{len(text) - LONGEST} more characters]"
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _tried(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as error:  # noqa: BLE001 - a broken part is the reason for a bundle
        return {"problem": f"{type(error).__name__}: {error}"}


def _checked(tools: Tools) -> list[dict[str, str]]:
    """Return the findings of `doctor`; stop at the first check that raises an error."""
    found = []
    try:
        for one in doctor.findings(tools):
            found.append({"check": one.check, "state": one.state, "text": one.text})  # noqa: PERF401
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        found.append({"check": "doctor", "state": doctor.FAIL, "text": text})
    return found


def _explained(tools: Tools, groups: list[Group]) -> Iterable[dict[str, Any]]:
    """For each cause, explain the object that has been waiting longest, with its history."""
    for group in groups[:EXPLAINED]:
        one = group.oldest
        if one.word not in nouns.nouns():
            continue
        namespace, _, name = one.name.rpartition("/")
        answer = explaining.explained(tools, one.word, namespace, name)
        state = answer.found.state
        yield as_json(one.word, one.name, answer.cause, state, answer.history())


def _class(storage_class: Mapping[str, Any]) -> dict[str, Any]:
    """Return a class without the values of its parameters, which may contain credentials."""
    return {
        "name": storage_class["metadata"]["name"],
        "provisioner": storage_class.get("provisioner"),
        "binding": storage_class.get("volumeBindingMode"),
        "reclaim": storage_class.get("reclaimPolicy"),
        "parameters": sorted(storage_class.get("parameters") or {}),
    }
