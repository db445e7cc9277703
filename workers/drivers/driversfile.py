"""Reads and checks the drivers file, which lists the drivers that a central worker serves.

```yaml
defaults:                            # optional; for every driver below
  timeouts: {create: 30s}
drivers:
  - name: fast.csi.example.org       # checked against the driver's own response
    endpoint: unix:///run/csi/fast.sock
  - name: array.csi.example.org
    endpoint: array.storage.svc:9000
    pool: gold                       # served only by workers that ask for this pool
    tls: {ca: ca.pem, certificate: tls.crt, key: tls.key, serverName: array.example.org}
    replicas: one                    # if there are several addresses, all workers call the same one
    timeouts: {create: 2m, delete: 1m, capacity: 10s}
    limits: {create: {concurrency: 10, rate: 5, burst: 10}, delete: {concurrency: 4}}
    classes: {slow-clone: {timeouts: {create: 30s}}}
    flags: {extra-create-metadata: true, default-fstype: xfs}
    controllers: {attacher: {flags: {timeout: 30s}}}
```
docs/drivers-file.md explains each field. Every error is one line: file, line, field and remedy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from csi_client.connection import CsiAddressError, TlsFiles, parse_address
from workers.config import flagvalues
from workers.config.flagfields import with_flags
from workers.config.flagsets import flag_set
from workers.controllers import catalogue
from workers.drivers.operations import READING, RPCS
from workers.drivers.yamlnodes import Entry, load
from workers.errors import ConfigError
from workers.queue.limits import LaneLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from workers.config.flags import Flag
    from workers.config.settings import Settings
    from workers.spec import Kind

NOT_SERIAL: Final[dict[str, LaneLimits]] = {}
"""The limits for `serial: false`: none, not even those of `defaults`."""

_DRIVER_FIELDS: Final = {
    "name",
    "endpoint",
    "pool",
    "tls",
    "insecure",
    "replicas",
    "timeouts",
    "limits",
    "classes",
    "flags",
    "controllers",
    "threads",
}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """One driver, and how an operator wants it to be served.

    Attributes:
        name: the name that GetPluginInfo must return; "" accepts any name (`--csi-address`).
        pool: only workers with this `--drivers-pool` serve the driver; if "", only workers without
            the flag do.
        timeouts: the timeouts in seconds by operation (`create`, `delete`, `capacity`).
        class_timeouts: the timeouts in seconds, by storage class and operation.
        limits: the limits by operation; missing limits are taken from the flags.
        limits_per_node: the number of concurrent calls for one node, by operation.
        flags: the parsed values of the provisioner's flags, by flag name.
        controller_flags: the parsed flags of the other controllers, by controller name.
        threads: how many of a worker's threads may work for this driver at the same time; None
            means a fair share.
        is_one_replica: True if all workers must use the same address when the host resolves to
            several.
        allow_tcp: False for a driver in the same pod (`--csi-address`).
        tls_stamp: a digest of the content of the TLS files.
    """

    name: str
    endpoint: str
    pool: str = ""
    tls: TlsFiles | None = None
    timeouts: Mapping[str, float] = field(default_factory=dict)
    class_timeouts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    limits: Mapping[str, LaneLimits] = field(default_factory=dict)
    limits_per_node: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    controller_flags: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    threads: int | None = None
    is_one_replica: bool = False
    allow_tcp: bool = True
    tls_stamp: str = ""

    @property
    def connection(self) -> tuple[object, ...]:
        """The settings that require a new connection if they change."""
        return (
            *(self.name, self.endpoint, self.tls, self.tls_stamp, self.is_one_replica),
            *(self.timeouts, self.flags, self.controller_flags),
        )

    def settings(self, base: Settings) -> Settings:
        """Return the process's settings overridden by this driver's own values."""
        return replace(
            base,
            driver=with_flags(base.driver, self.flags),
            capacity=with_flags(base.capacity, self.flags),
            provision=with_flags(base.provision, self.flags),
            controllers={**base.controllers, **self._controllers(base)},
        )

    def _controllers(self, base: Settings) -> dict[str, Any]:
        """Return the settings of the controllers that run here and have values in the file."""
        return {
            spec.name: spec.read_settings(
                {**base.values[spec.name], **self.controller_flags[spec.name]}
            )
            for spec in catalogue.specs(base.values)
            if spec.name in self.controller_flags
        }

    def timeouts_by_rpc(self) -> dict[str, float]:
        """Return the timeouts for the driver's client, by gRPC method."""
        return {RPCS[name]: seconds for name, seconds in self.timeouts.items()}

    def hold_seconds(self, kind: Kind, limits: LaneLimits, base: Settings) -> float:
        """Return how long to wait for a dead worker's open call.

        The result is 0 if more than one call may run at a time.
        """
        is_asked_for = any(name in self.limits or name not in READING for name in kind.operations)
        if not is_asked_for or 1 not in {limits.concurrency, limits.total}:
            return 0.0
        return self.longest_call(self.settings(base))

    def longest_call(self, settings: Settings) -> float:
        """Return the longest timeout of any call, in seconds, under the driver's own `settings`."""
        by_class = [x for timeouts in self.class_timeouts.values() for x in timeouts.values()]
        own = [getattr(one, "timeout_seconds", 0.0) for one in settings.controllers.values()]
        return max([settings.driver.timeout_seconds, *self.timeouts.values(), *by_class, *own])

    def lane_limits(self, kind: Kind, default: int) -> LaneLimits:
        """Return the limits for keys of one kind; limits in the file override the controller's.

        The operations of a kind share a queue: the narrowest limit applies to all of them, unless
        the reconcile itself enforces the limit of each operation (`Kind.limits_each`).
        """
        own = [self.limits[name] for name in kind.operations if name in self.limits]
        if not own:
            return LaneLimits(default)
        narrowest = min(own, key=lambda one: one.concurrency)
        if not kind.limits_each:
            return narrowest
        widest = max(
            self.limits.get(name, LaneLimits(default)).concurrency for name in kind.operations
        )
        return replace(narrowest, concurrency=widest)


def read_texts(path: Path) -> dict[Path, str]:
    """Return the content of the file, or of each `*.yaml` in a folder, sorted by file name.

    Raises:
        ConfigError: a file cannot be read; the message is one line and names the file.
    """
    try:
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the drivers files: {error.strerror}") from None
    return {one: _read_text(one) for one in files}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the drivers file: {error.strerror}") from None


def parse_all(texts: Mapping[Path, str], *, pool: str | None = "") -> dict[str, DriverSpec]:
    """Return the drivers of all files, by name.

    Only the drivers of the given pool are returned; None returns the drivers of every pool.

    Raises:
        ConfigError: a file is invalid; the message is one line and names the file, the line,
            the problem and the remedy.
    """
    found: dict[str, DriverSpec] = {}
    places: dict[str, Path] = {}
    for path, content in texts.items():
        for name, spec in parse(content, path, pool=None).items():
            same = next((x for x in found.values() if x.endpoint == spec.endpoint), None)
            if other := found.get(name) or same:
                raise ConfigError(
                    f"{path}: driver {name} has the same {'name' if name in found else 'endpoint'} "
                    f"as driver {other.name} in {places[other.name].name}; remove one of the two "
                    "entries"
                )
            found[name], places[name] = spec, path
    return {name: spec for name, spec in found.items() if pool in {None, spec.pool}}


def parse(content: str, path: Path, *, pool: str | None = "") -> dict[str, DriverSpec]:
    """Return the drivers of one file, by name.

    Only the drivers of the given pool are returned; None returns the drivers of every pool.

    Raises:
        ConfigError: the file is invalid; the message is one line and names the file, the line,
            the problem and the remedy.
    """
    top = load(content, str(path)).mapping({"defaults", "drivers"}, required={"drivers"})
    defaults = DriverSpec("", "")
    if "defaults" in top:
        fields = top["defaults"].mapping({"timeouts", "limits", "flags", "controllers", "threads"})
        defaults = _common(fields, defaults)
    found: dict[str, DriverSpec] = {}
    for entry in top["drivers"].sequence():
        spec = _driver(entry, defaults, path)
        if spec.name in found:
            raise entry.error(f"driver {spec.name} is listed twice; remove one of the two entries")
        found[spec.name] = spec
    same: dict[str, str] = {}
    for spec in found.values():
        other = same.setdefault(spec.endpoint, spec.name)
        if other != spec.name:
            raise top["drivers"].error(
                f"drivers {other} and {spec.name} have the same endpoint {spec.endpoint}, but one "
                "socket serves only one driver; remove or correct one of the two entries"
            )
    return {name: spec for name, spec in found.items() if pool in {None, spec.pool}}


def _driver(entry: Entry, defaults: DriverSpec, path: Path) -> DriverSpec:
    fields = entry.mapping(_DRIVER_FIELDS, required={"name", "endpoint"})
    name = fields["name"].text()
    if not name or len(name) > 63 or any(c.isspace() or c in "/|%" for c in name):
        raise fields["name"].error(
            "a driver name must have 1 to 63 characters, and no space, /, | or %"
        )
    endpoint = fields["endpoint"].text()
    try:
        target = parse_address(endpoint, allow_tcp=True)
    except CsiAddressError as error:
        raise fields["endpoint"].error(str(error)) from None
    tls = _tls(fields["tls"], path.parent) if "tls" in fields else None
    if tls is not None and target.startswith("unix"):
        raise fields["tls"].error(
            "TLS works only with an endpoint host:port, not with a unix socket"
        )
    _check_open(fields, target, tls)
    if "replicas" in fields and target.startswith("unix"):
        raise fields["replicas"].error("replicas works only with an endpoint host:port")
    spec = replace(
        defaults,
        name=name,
        endpoint=endpoint,
        pool=fields["pool"].text() if "pool" in fields else "",
        tls=tls,
        class_timeouts=_classes(fields["classes"]) if "classes" in fields else {},
        is_one_replica="replicas" in fields and _is_one(fields["replicas"]),
    )
    return _common(fields, spec)


def _check_open(fields: dict[str, Entry], target: str, tls: TlsFiles | None) -> None:
    """Require mutual TLS or `insecure` for a network endpoint, because calls carry secrets."""
    is_insecure = "insecure" in fields and _truth(fields["insecure"])
    is_mutual = tls is not None and tls.certificate is not None
    if target.startswith("unix") or is_mutual or is_insecure:
        return
    raise fields["endpoint"].error(
        "without TLS, the secrets of storage classes would be sent to any program that answers at "
        "this endpoint. Set tls with ca, certificate and key, or set insecure: true if nobody else "
        "can read the traffic or answer there"
    )


def _is_one(entry: Entry) -> bool:
    if entry.text() not in {"one", "any"}:
        raise entry.error("replicas must be `one` or `any`")
    return entry.text() == "one"


def _truth(entry: Entry) -> bool:
    if entry.text() not in {"true", "false"}:
        raise entry.error(f"{entry.path.rpartition('.')[2]} must be true or false")
    return entry.text() == "true"


def _common(fields: dict[str, Entry], spec: DriverSpec) -> DriverSpec:
    """Read the fields that are also allowed in `defaults`; the driver's values take precedence."""
    if "timeouts" in fields:
        spec = replace(spec, timeouts={**spec.timeouts, **_timeouts(fields["timeouts"])})
    if "limits" in fields:
        own = _limits(fields["limits"])
        inherited = {} if own is NOT_SERIAL else spec.limits
        per_node = {**spec.limits_per_node, **_limits_per_node(fields["limits"])}
        spec = replace(spec, limits={**inherited, **own}, limits_per_node=per_node)
    if "flags" in fields:
        spec = replace(spec, flags={**spec.flags, **_flags(fields["flags"])})
    if "controllers" in fields:
        own_flags = _controllers(fields["controllers"])
        known = {
            name: {**spec.controller_flags.get(name, {}), **flags}
            for name, flags in own_flags.items()
        }
        spec = replace(spec, controller_flags={**spec.controller_flags, **known})
    if "threads" in fields:
        spec = replace(spec, threads=_number(fields["threads"], int, least=1))
    return spec


def _tls(entry: Entry, folder: Path) -> TlsFiles:
    fields = entry.mapping({"ca", "certificate", "key", "serverName"}, required={"ca"})
    if ("certificate" in fields) != ("key" in fields):
        raise entry.error("certificate and key must be set together")
    files = {
        name: folder / fields[name].text()
        for name in ("ca", "certificate", "key")
        if name in fields
    }
    for name, file in files.items():
        if not file.is_file():
            raise fields[name].error(f"no such file: {file}")
    return TlsFiles(
        files["ca"],
        files.get("certificate"),
        files.get("key"),
        server_name=fields["serverName"].text() if "serverName" in fields else None,
    )


def _operations() -> set[str]:
    """Return the operations of all kinds of keys."""
    return set(catalogue.lanes())


def _timeouts(entry: Entry) -> dict[str, float]:
    found = {}
    for name, value in entry.mapping(_operations()).items():
        found[name] = _flag_value(value, flagvalues.parse_duration)
        if found[name] <= 0:
            raise value.error("a timeout must be greater than 0, for example 30s")
    return found


def _classes(entry: Entry) -> dict[str, dict[str, float]]:
    return {
        name: _timeouts(fields["timeouts"])
        for name, value in entry.mapping(None).items()
        for fields in [value.mapping({"timeouts"}, required={"timeouts"})]
    }


def _limits(entry: Entry) -> dict[str, LaneLimits]:
    fields = entry.mapping({*_operations(), "serial"})
    found = {}
    if "serial" in fields:
        if len(fields) > 1:
            raise entry.error(
                "serial means one call at a time, so it cannot be combined with other "
                "limits; remove the other limits"
            )
        is_serial = _truth(fields["serial"])
        return dict.fromkeys(_operations(), LaneLimits(1, total=1)) if is_serial else NOT_SERIAL
    for name, value in fields.items():
        numbers = value.mapping({"concurrency", "rate", "burst", "per"})
        if "per" in numbers:
            continue
        if "concurrency" not in numbers:
            raise value.error("field 'concurrency' is missing")
        if "burst" in numbers and "rate" not in numbers:
            raise numbers["burst"].error("burst is allowed only together with rate")
        rate = _number(numbers["rate"], float, least=0.001) if "rate" in numbers else 0.0
        burst = max(1, math.ceil(rate))
        found[name] = LaneLimits(
            _number(numbers["concurrency"], int, least=1),
            rate,
            _number(numbers["burst"], int, least=1) if "burst" in numbers else burst,
        )
    return found


def _limits_per_node(entry: Entry) -> dict[str, int]:
    """Read `attach: {per: node}`: one call at a time per node, or `concurrency` calls."""
    found = {}
    for name, value in entry.mapping({*_operations(), "serial"}).items():
        if name == "serial":
            continue
        numbers = value.mapping({"concurrency", "rate", "burst", "per"})
        if "per" not in numbers:
            continue
        per_node = {
            one for kind in catalogue.kinds().values() if kind.group_by for one in kind.operations
        }
        if numbers["per"].text() != "node" or name not in per_node:
            raise numbers["per"].error(
                f"per: node is allowed only for {' and '.join(sorted(per_node))}"
            )
        if {"rate", "burst"} & numbers.keys():
            raise numbers["per"].error("per: node can be combined only with concurrency")
        own = numbers.get("concurrency")
        found[name] = _number(own, int, least=1) if own is not None else 1
    return found


def _flags(entry: Entry) -> dict[str, Any]:
    """Read the csi-provisioner flags that can be set per driver."""
    flags = flag_set(catalogue.choose("provisioner")).flags.values()
    return _own_flags(entry, (flag for flag in flags if flag.per_driver))


def _controllers(entry: Entry) -> dict[str, dict[str, Any]]:
    """Read the flags of each controller; those of the provisioner are in the driver's `flags`."""
    known = {spec.name: spec for spec in catalogue.SPECS[1:] if not spec.part_of}
    return {
        name: _own_flags(
            value.mapping({"flags"}, required={"flags"})["flags"],
            (flag for flag in known[name].flags if not flag.ignored),
        )
        for name, value in entry.mapping(set(known)).items()
    }


def _own_flags(entry: Entry, flags: Iterable[Flag]) -> dict[str, Any]:
    known = {flag.name: flag for flag in flags}
    found = {}
    for name, value in entry.mapping(set(known)).items():
        found[name] = _flag_value(value, known[name].parse)
        if problem := known[name].problem(found[name]):
            raise value.error(problem)
    return found


def _flag_value(entry: Entry, parser: Callable[[str], _T]) -> _T:
    try:
        return parser(entry.text())
    except ValueError as error:
        raise entry.error(str(error)) from None


def _number(entry: Entry, kind: Callable[[str], _T], *, least: float) -> _T:
    text = entry.text()
    try:
        value: Any = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise entry.error(f"{text!r} is not a number of at least {least:g}")
    return value  # type: ignore[no-any-return] # compared as a number above
