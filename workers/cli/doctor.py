"""`csi-fleet doctor`: checks everything that csi-fleet needs, and prints a line for each check."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from csi_client.errors import CsiError
from workers.cli import certificates, drivertools, terminal
from workers.cli.status import beat_words
from workers.controllers import catalogue
from workers.drivers.link import tls_trouble
from workers.errors import ApiError, ConfigError, ProvisionerError
from workers.explain.words import named, nearest
from workers.kube import paths
from workers.kube.versions import outdated
from workers.queue.clock import read_clock
from workers.queue.inspect import read_redis
from workers.queue.limits import read_stats
from workers.spec import Permission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.cli.tools import Tools
    from workers.drivers.driversfile import DriverSpec

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "FAIL"
SKEW_SECONDS: Final = 2.0
# Percentages of Redis's memory, equal to those in workers/queue/lua/lib.lua.
SCARCE_PERCENT: Final = 60
FULL_PERCENT: Final = 90
OLDEST_REDIS: Final = (6, 2)
OLDEST_KUBERNETES: Final = 27
ACCESS_REVIEWS: Final = paths.Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"
)

# The permissions that the engine itself needs in the namespace of its records.
OWN: Final = Permission("", ("configmaps",), ("get", "list", "create", "patch", "delete"), "copies")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    state: str
    text: str


Check: TypeAlias = "Callable[[Tools], Iterator[Finding]]"


def run(tools: Tools) -> int:
    """Run the command; return 1 if something that csi-fleet cannot work without is missing."""
    return show(tools, "doctor", list(findings(tools)))


def show(tools: Tools, title: str, found: list[Finding]) -> int:
    """Print the findings; return the exit code."""
    if tools.is_data:
        items = [{"check": one.check, "state": one.state, "text": one.text} for one in found]
        tools.write(title.title().replace(" ", ""), {"items": items})
    else:
        terminal.write_table(
            title,
            ("CHECK", "STATE", "RESULT"),
            [[one.check, one.state, one.text] for one in found],
        )
    return 1 if any(one.state == FAIL for one in found) else 0


def findings(tools: Tools) -> Iterator[Finding]:
    """Run every check; a check that cannot run counts as failed, and the other checks still run."""
    checks: tuple[tuple[str, Check], ...] = (
        ("versions", versions),
        ("api server", api_server),
        ("rights", rights),
        ("crds", crds),
        ("redis", redis_settings),
        ("system", system),
        ("driver", drivers),
    )
    said: set[str] = set()
    is_away = False
    for name, check in checks:
        if is_away and check is system:  # it would wait for Redis again
            continue
        for one in _tried(tools, name, check):
            # An unavailable Redis or API server fails several checks, but is reported once.
            if one.state != FAIL or one.text not in said:
                yield one
            said.add(one.text)
            is_away = is_away or (check is redis_settings and one.check == name)


def _tried(tools: Tools, name: str, check: Check) -> Iterator[Finding]:
    try:
        yield from check(tools)
    except ProvisionerError as error:
        yield Finding(name, FAIL, str(error))


def versions(_: Tools) -> Iterator[Finding]:
    """Yield the versions of csi-fleet and its libraries."""
    parts = (f"{name} {version(name)}" for name in ("celery", "redis", "grpcio", "kubernetes"))
    yield Finding(
        "versions",
        OK,
        f"csi-fleet {version('csi-fleet')}, Python {platform.python_version()}, {', '.join(parts)}",
    )


def api_server(tools: Tools) -> Iterator[Finding]:
    """Yield the version of the API server."""
    found = tools.kube.client.get("/version")
    minor = "".join(c for c in str(found.get("minor", "")) if c.isdigit())
    is_old = minor.isdigit() and int(minor) < OLDEST_KUBERNETES
    text = f"Kubernetes {found.get('gitVersion')}"
    yield Finding(
        "api server",
        WARN if is_old else OK,
        text + (", which is older than the tested versions" if is_old else ""),
    )


def rights(tools: Tools) -> Iterator[Finding]:
    """Check the account's permissions, with one API request for each."""
    lacking: dict[str, dict[str, None]] = {FAIL: {}, WARN: {}}
    asked: dict[tuple[str, str, str, str], bool] = {}
    own = tools.settings.kube.namespace
    chosen = catalogue.specs(tools.settings.chosen)
    rules = [(OWN, own), *((rule, "") for spec in chosen for rule in spec.permissions)]
    for rule, namespace in rules:
        for resource in rule.resources:
            missing = []
            for verb in rule.verbs:
                question = (verb, rule.group, resource, namespace)
                if question not in asked:
                    asked[question] = _may(tools, *question)
                if not asked[question]:
                    missing.append(verb)
            if missing:
                name = f"{resource}.{rule.group}" if rule.group else resource
                severity = WARN if rule.feature else FAIL
                lacking[severity][f"{'/'.join(missing)} {name}"] = None
    count = len(asked)
    for severity, names in lacking.items():
        if names:
            yield Finding("rights", severity, f"this account is not allowed to: {', '.join(names)}")
    if not any(lacking.values()):
        yield Finding("rights", OK, f"the account has all {count} permissions that are needed")


def crds(tools: Tools) -> Iterator[Finding]:
    """Check that installed CRDs serve the versions that the chosen controllers read."""
    kinds = [watch.resource for spec in catalogue.specs(tools.settings.chosen)
             for watch in spec.watches]  # fmt: skip
    for problem in outdated(tools.kube, kinds):
        yield Finding("crds", WARN, problem)


def _may(tools: Tools, verb: str, group: str, resource: str, namespace: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": name, "namespace": namespace}
    if part:
        attributes["subresource"] = part
    review = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }
    answer = tools.kube.client.create(ACCESS_REVIEWS.path(), review)
    return bool((answer.get("status") or {}).get("allowed"))


def redis_settings(tools: Tools) -> Iterator[Finding]:
    """Check Redis's version, eviction policy, memory, role, persistence and clock."""
    facts = read_redis(tools.redis)
    parts = tuple(int(part) for part in facts["version"].split(".")[:2] if part.isdigit())
    yield Finding(
        "redis version",
        OK if parts >= OLDEST_REDIS else FAIL,
        facts["version"]
        + (
            ""
            if parts >= OLDEST_REDIS
            else ": version 6.2 or newer is needed, or 7 for a Redis Cluster"
        ),
    )
    is_safe = facts["policy"] == "noeviction"
    advice = (
        "" if is_safe else ": records of attempts may be evicted. Set maxmemory-policy noeviction"
    )
    yield Finding("redis eviction", OK if is_safe else FAIL, facts["policy"] + advice)
    if facts["evicted"] not in {"0", "?"}:
        yield Finding("redis eviction", FAIL, f"{facts['evicted']} keys have already been evicted")
    percent = int(facts["memory_percent"]) if facts["memory_percent"].isdigit() else 0
    if percent >= SCARCE_PERCENT:
        is_full = percent >= FULL_PERCENT
        loss = "no new record is accepted" if is_full else "explain has no timelines"
        advice = (
            f"{percent} % of maxmemory is used, so {loss}. Raise maxmemory and the container's "
            "memory limit"
        )
        yield Finding("redis memory", FAIL if is_full else WARN, advice)
    if facts["role"] != "master":
        yield Finding(
            "redis role",
            FAIL,
            f"{facts['role']}: this server rejects writes. Connect to the master",
        )
    is_kept = facts["appendonly"] == "yes"
    yield Finding(
        "redis persistence",
        OK if is_kept else WARN,
        "appendonly"
        if is_kept
        else "none: after a restart of Redis, all claims are rechecked, which takes longer",
    )
    skew = abs(read_clock(tools.redis).shown_now - time.time())
    yield Finding(
        "clock",
        OK if skew < SKEW_SECONDS else WARN,
        f"{skew:.1f} s between this machine and Redis; this affects only displayed times",
    )


def system(tools: Tools) -> Iterator[Finding]:
    """Check which processes are alive and which drivers are served."""
    watchers = [one for one in tools.presence.alive() if one.role == "watcher"]
    workers = tools.presence.workers()
    yield Finding("watchers", OK if watchers else FAIL, f"{len(watchers)} alive")
    yield Finding("workers", OK if workers else FAIL, f"{len(workers)} alive")
    has_beat = tools.presence.has_beat()
    yield Finding("beat", OK if has_beat else WARN, beat_words(has_beat=has_beat))
    records = tools.registry.alive()
    served = named({str(one.get("name") or "") for one in records.values()})
    yield Finding("drivers", OK if served else FAIL, ", ".join(served) or "no driver is served")
    wanted = tools.settings.tool.driver
    if wanted and wanted not in served:
        hint = nearest(wanted, served)
        yield Finding(f"driver {wanted}", FAIL, f"no worker serves it.{hint}")
    elif wanted:
        of = {name for one in records.values() if one.get("name") == wanted
              for name in one.get("controllers") or ()}  # fmt: skip
        lacks = sorted({one.name for one in catalogue.specs(_chosen(tools))
                        if one.needs_driver and not one.part_of} - of)  # fmt: skip
        text = f"the driver's workers run {', '.join(sorted(of)) or 'no controller'}"
        lack = f", but not {', '.join(lacks)}" if lacks else ""
        yield Finding(f"driver {wanted}", FAIL if lacks else OK, text + lack)
    for trouble in tools.presence.troubles():
        yield Finding("troubles", FAIL, trouble)
    lost = {
        unquote(lane.partition("|")[2]): one.paused["driver"]
        for lane, one in read_stats(tools.redis).items()
        if "driver" in one.paused
    }
    for name, reason in sorted(lost.items()):
        yield Finding(f"driver {name}", FAIL, f"no worker is connected to the driver: {reason}")


def _chosen(tools: Tools) -> tuple[str, ...]:
    """Return the controllers named by `--controllers`; none if the flag was not given."""
    return tools.settings.chosen if "controllers" in tools.settings.explicit else ()


def drivers(tools: Tools) -> Iterator[Finding]:
    """Check the handshake with each driver given by --csi-address or --drivers-file."""
    if {"csi-address", "drivers-file"} & tools.settings.explicit:
        for spec in drivertools.given(tools.settings.driver):
            yield _handshake(spec)
            yield from _certificates(spec)


def _certificates(spec: DriverSpec) -> Iterator[Finding]:
    """Report the driver's TLS files that expire soon or have expired."""
    if spec.tls is None:
        return
    for file in (spec.tls.ca, spec.tls.certificate):
        if file is None:
            continue
        is_valid, end = certificates.lasting(file.read_bytes(), is_bundle=file == spec.tls.ca)
        if end:
            yield Finding(
                f"driver {spec.name}",
                WARN if is_valid else FAIL,
                f"the certificate in {file} {end}. Repeat `csi-fleet adopt {spec.name} "
                "--as=central`, which renews the certificates that it created; otherwise renew the "
                "Secret",
            )


def _handshake(spec: DriverSpec) -> Finding:
    address = spec.name or spec.endpoint
    try:
        client = drivertools.open_client(spec, drivertools.CONNECT_SECONDS)
    except ConfigError as error:
        return Finding(f"driver {address}", FAIL, str(error))
    try:
        if not client.wait_connected(drivertools.CONNECT_SECONDS):
            trouble = tls_trouble(spec) or "no driver answers at this address"
            return Finding(f"driver {address}", FAIL, trouble)
        name, release = client.plugin_info()
        is_ready = client.probe()
        can = client.controller_capabilities()
    except (CsiError, ApiError) as error:
        return Finding(f"driver {address}", FAIL, str(error))
    finally:
        client.close()
    if spec.name not in {"", name}:
        return Finding(f"driver {address}", FAIL, f"driver {name} answers at {spec.endpoint}")
    if not is_ready:
        return Finding(f"driver {address}", FAIL, f"{name} {release} is not ready (Probe)")
    if "CREATE_DELETE_VOLUME" not in can:
        return Finding(f"driver {address}", FAIL, f"{name} cannot create volumes")
    return Finding(f"driver {address}", OK, f"{name} {release}: {', '.join(sorted(can))}")
