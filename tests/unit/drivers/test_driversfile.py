"""The drivers file: its valid content, and the one-line error for each mistake."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from workers.config.load import parse as parse_arguments
from workers.config.settings import Settings
from workers.controllers import catalogue
from workers.controllers.capacity.controller import CONTROLLER as CAPACITY
from workers.controllers.provisioner.controller import CONTROLLER as PROVISIONER
from workers.drivers import driversfile
from workers.drivers.driversfile import parse
from workers.errors import ConfigError
from workers.queue.limits import LaneLimits

FILE = Path("/etc/fleet/drivers.yaml")
ONE = "drivers:\n- name: a.example.org\n  endpoint: /a.sock\n"


def one(extra="", top=""):
    return parse(f"{top}{ONE}{extra}", FILE)["a.example.org"]


def test_the_least_that_is_needed():
    spec = one()
    assert (spec.name, spec.endpoint, spec.pool, spec.threads) == (
        "a.example.org",
        "/a.sock",
        "",
        None,
    )
    settings = Settings()
    assert spec.settings(settings) == settings
    assert lane_limits(spec, "claims") == LaneLimits(100)
    assert lane_limits(spec, "capacity") == LaneLimits(1)


def lane_limits(spec, kind):
    """Return a worker's limits for a driver queue: the file's override the controllers' own."""
    driver = SimpleNamespace(settings=spec.settings(Settings()))
    defaults = {**PROVISIONER.limits(driver), **CAPACITY.limits(driver)}
    return spec.lane_limits(catalogue.kinds()[kind], defaults[kind])


def hold_seconds(spec, kind):
    limits = lane_limits(spec, kind)
    return spec.hold_seconds(catalogue.kinds()[kind], limits, Settings())


def test_own_values_win_over_defaults_one_by_one():
    top = "defaults:\n  timeouts: {create: 30s, delete: 20s}\n  flags: {worker-threads: 7}\n"
    spec = one("  timeouts: {create: 2m}\n  flags: {default-fstype: xfs, timeout: 4s}\n", top)
    assert spec.timeouts_by_rpc() == {
        "Controller/CreateVolume": 120.0,
        "Controller/DeleteVolume": 20.0,
    }
    settings = spec.settings(Settings())
    assert settings.provision.default_fstype == "xfs"
    assert settings.provision.worker_threads == 7
    assert settings.driver.timeout_seconds == 4.0


def test_limits_per_operation_and_the_serial_mode():
    spec = one("  limits: {create: {concurrency: 3, rate: 2.5}, delete: {concurrency: 2}}\n")
    assert lane_limits(spec, "claims") == LaneLimits(3, 2.5, 3)
    assert lane_limits(spec, "volumes") == LaneLimits(2)
    serial = one("  limits: {serial: true}\n")
    assert {lane_limits(serial, kind) for kind in ("claims", "volumes", "capacity")} == {
        LaneLimits(1, total=1)
    }
    assert lane_limits(serial, "cloning") == LaneLimits(1)


def test_serial_of_the_defaults_can_be_taken_back():
    spec = one("  limits: {serial: false}\n", "defaults:\n  limits: {serial: true}\n")
    assert lane_limits(spec, "claims") == LaneLimits(100)


def test_one_call_at_a_time_is_held_for_the_longest_call():
    """A dead worker's call may run that long; other limits are handed over at once."""
    serial = one(
        "  limits: {serial: true}\n  timeouts: {create: 20s}\n"
        "  classes: {slow: {timeouts: {create: 1m}}}\n"
    )
    assert hold_seconds(serial, "volumes") == 60.0
    assert hold_seconds(serial, "sweep") == 0.0
    assert hold_seconds(one(), "claims") == 0.0
    assert hold_seconds(one(), "capacity") == 0.0


OWN_TIMEOUTS = [
    spec.name for spec in catalogue.SPECS[1:] if any(flag.name == "timeout" for flag in spec.flags)
]


@pytest.mark.parametrize("name", OWN_TIMEOUTS)
def test_the_longest_call_may_be_of_any_controller(name):
    """Otherwise its key would be released, and the process restarted, before the call ends."""
    arguments = ["--drivers-file=/x", "--redis-url=redis://r", "--controllers=all"]
    base = parse_arguments("worker", arguments, {})
    spec = one(f"  controllers: {{{name}: {{flags: {{timeout: 1h}}}}}}\n")
    assert spec.longest_call(spec.settings(base)) == 3600.0


def test_class_timeouts():
    spec = one("  classes: {slow: {timeouts: {create: 1h}}}\n")
    assert spec.class_timeouts == {"slow": {"create": 3600.0}}


def test_a_pool_is_served_by_its_own_workers_only():
    content = ONE + "- {name: b, endpoint: /b.sock, pool: gold}\n"
    assert list(parse(content, FILE)) == ["a.example.org"]
    assert list(parse(content, FILE, pool="gold")) == ["b"]


def test_tls_files_are_beside_the_drivers_file(tmp_path):
    (tmp_path / "ca.pem").touch()
    (tmp_path / "t").touch()
    tls = "{ca: ca.pem, certificate: t, key: t, serverName: x}"
    spec = parse(f"drivers: [{{name: a, endpoint: 'h:1', tls: {tls}}}]", tmp_path / "d.yaml")["a"]
    assert spec.tls is not None
    assert (spec.tls.ca, spec.tls.server_name) == (tmp_path / "ca.pem", "x")


@pytest.mark.parametrize("tls", ["", ", tls: {ca: ca.pem}"])
@pytest.mark.parametrize("endpoint", ["array.storage.svc:9000", "127.0.0.1:9000", "dns:///a:1"])
def test_sec3_secrets_go_over_a_network_only_if_both_sides_prove_who_they_are(
    tmp_path, endpoint, tls
):
    """Otherwise anyone who can write the file could have all classes' secrets sent to himself."""
    (tmp_path / "ca.pem").touch()
    entry = f"name: a, endpoint: '{endpoint}'{tls}"
    with pytest.raises(
        ConfigError, match=r"endpoint: without TLS, the secrets .* or set insecure: true"
    ):
        parse(f"drivers: [{{{entry}}}]", tmp_path / "d.yaml")
    with pytest.raises(ConfigError, match="the secrets"):
        parse(f"drivers: [{{{entry}, insecure: false}}]", tmp_path / "d.yaml")
    assert list(parse(f"drivers: [{{{entry}, insecure: true}}]", tmp_path / "d.yaml")) == ["a"]


MISTAKES = [
    pytest.param("", "the file is empty; add a list `drivers:`", id="empty"),
    pytest.param("a: [", "line 1: not YAML", id="not YAML"),
    pytest.param("- x", "line 1: must be a map of fields", id="a list"),
    pytest.param("drivers: x", "line 1: drivers: must be a list", id="no list"),
    pytest.param("driver: []", "unknown field 'driver'; did you mean 'drivers'?", id="typo"),
    pytest.param(
        "drivers:\n- name: a\n", "line 2: drivers[0]: field 'endpoint' is missing", id="gap"
    ),
    pytest.param(
        ONE + "  zzzz: 1\n",
        "line 4: drivers[0]: unknown field 'zzzz'; the known fields are",
        id="odd",
    ),
    pytest.param(ONE + "  name: b\n", "line 4: drivers[0].name: occurs twice", id="twice"),
    pytest.param(
        ONE + ONE[9:], "line 4: drivers[1]: driver a.example.org is listed twice", id="again"
    ),
    pytest.param(
        ONE + "- {name: b, endpoint: /a.sock}\n", "have the same endpoint /a.sock", id="one socket"
    ),
    pytest.param(
        "drivers: [{name: a b, endpoint: /a}]", "drivers[0].name: a driver name", id="name"
    ),
    pytest.param("drivers: [{name: a, endpoint: x}]", "neither a unix socket nor", id="endpoint"),
    pytest.param(
        ONE + "  timeouts: {create: 5}\n", "line 4: drivers[0].timeouts.create:", id="no unit"
    ),
    pytest.param(ONE + "  timeouts: {create: 0s}\n", "must be greater than 0", id="zero"),
    pytest.param(ONE + "  timeouts: {list: 1s}\n", "unknown field 'list'", id="operation"),
    pytest.param(ONE + "  limits: {create: {concurrency: 0}}\n", "at least 1", id="nothing"),
    pytest.param(ONE + "  limits: {create: {concurrency: x}}\n", "'x' is not a number", id="word"),
    pytest.param(ONE + "  limits: {create: {rate: 1}}\n", "'concurrency' is missing", id="rate"),
    pytest.param(
        ONE + "  limits: {create: {concurrency: 1, burst: 2}}\n",
        "burst is allowed only together with rate",
        id="burst",
    ),
    pytest.param(
        ONE + "  limits: {serial: true, create: {concurrency: 2}}\n",
        "remove the other limits",
        id="serial",
    ),
    pytest.param(ONE + "  flags: {kube-api-qps: 1}\n", "unknown field 'kube-api-qps'", id="flag"),
    pytest.param(ONE + "  flags: {strict-topology: 2}\n", "flags.strict-topology:", id="bool"),
    pytest.param(ONE + "  flags: {worker-threads: 0}\n", "at least 1", id="threads"),
    pytest.param(ONE + "  threads: 0\n", "at least 1", id="seats"),
    pytest.param(ONE + "  tls: {ca: ca.pem}\n", "not with a unix socket", id="unix"),
    pytest.param(
        "drivers: [{name: a, endpoint: 'h:1', tls: {ca: no.pem}}]", "no such file", id="no CA"
    ),
    pytest.param(
        "drivers: [{name: a, endpoint: 'h:1', tls: {ca: x, key: y}}]",
        "must be set together",
        id="key",
    ),
    pytest.param(ONE + "  insecure: 1\n", "insecure must be true or false", id="insecure"),
    pytest.param(ONE + "  pool:\n", "drivers[0].pool: has no value", id="no value"),
]


@pytest.mark.parametrize(("content", "expected"), MISTAKES)
def test_a_mistake_is_told_in_one_line(content, expected, tmp_path):
    """The text names the file, so an operator finds the place without reading csi-fleet's code."""
    if "unix socket" in expected and "ca.pem" in content:
        (tmp_path / "ca.pem").touch()
    file = tmp_path / "drivers.yaml"
    with pytest.raises(ConfigError) as caught:
        parse(content, file)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_limit_for_each_node():
    """`per: node` leaves the driver's whole concurrency to the flags (MA-010)."""
    spec = one("  limits: {attach: {per: node}, detach: {per: node, concurrency: 2}}\n")
    assert spec.limits_per_node == {"attach": 1, "detach": 2}
    assert spec.limits == {}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param("{modify: {concurrency: 2}}", LaneLimits(10), id="the other one's default"),
        pytest.param(
            "{expand: {concurrency: 20}, modify: {concurrency: 2, rate: 1}}",
            LaneLimits(20, 1.0, 1),
            id="the widest; a rate counts for both",
        ),
        pytest.param(
            "{expand: {concurrency: 3}, modify: {concurrency: 2}}", LaneLimits(3), id="both narrow"
        ),
    ],
)
def test_mr012_lane_of_two_operations_that_are_limited_each(limits, expected):
    """MR-012: the queue is as wide as the wider operation; the narrower one has its own limit."""
    spec = one(f"  limits: {limits}\n")
    assert spec.lane_limits(catalogue.kinds()["changes"], 10) == expected


def folder_of(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(content)
    return driversfile.read_texts(tmp_path)


def test_a_folder_is_all_of_its_files(tmp_path):
    (tmp_path / "notes.txt").write_text("not a drivers file")
    texts = folder_of(
        tmp_path,
        a="drivers: [{name: a, endpoint: /a.sock}]",
        b="drivers: [{name: b, endpoint: /b.sock, pool: gold}]",
        empty="drivers: []",
    )
    assert set(driversfile.parse_all(texts, pool=None)) == {"a", "b"}
    assert set(driversfile.parse_all(texts)) == {"a"}


@pytest.mark.parametrize(
    ("entry", "what"),
    [("{name: a, endpoint: /b.sock}", "name"), ("{name: b, endpoint: /a.sock}", "endpoint")],
)
def test_a_driver_is_in_one_file_of_a_folder(tmp_path, entry, what):
    first = "drivers: [{name: a, endpoint: /a.sock}]"
    texts = folder_of(tmp_path, first=first, second=f"drivers: [{entry}]")
    said = f"has the same {what} as driver a in first.yaml; remove one"
    with pytest.raises(ConfigError, match=said):
        driversfile.parse_all(texts)
