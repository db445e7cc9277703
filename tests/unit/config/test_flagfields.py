"""One row per flag determines what is parsed, refused, documented and stored in settings."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from workers.config import load
from workers.config.flagdocs import flags_markdown
from workers.config.flagfields import read
from workers.config.flagsets import flag_set
from workers.config.flagtable import COMMON_FLAGS, OWN_FLAGS
from workers.config.load import parse
from workers.config.settings import Settings
from workers.config.toolflags import ToolSettings
from workers.controllers import catalogue
from workers.drivers import driversfile
from workers.errors import ConfigError

PARTS = ("driver", "kube", "node", "leader", "http", "log", "redis", "flower", "tool")
WHOLE = [spec.name for spec in catalogue.SPECS if not spec.part_of]
DRIVER = "drivers:\n- name: d\n  endpoint: unix:///s\n"


def test_a_process_without_flags_has_the_default_settings():
    """`Settings()`, which tests use, equals the result of an empty command line (STR-4)."""
    told, usual = parse("run", [], {}), Settings()
    assert {one: getattr(told, one) for one in PARTS} == {one: getattr(usual, one) for one in PARTS}
    assert told.resync_period_seconds == usual.resync_period_seconds
    assert (told.provision, told.capacity) == (usual.provision, usual.capacity)


@pytest.mark.parametrize(
    ("argv", "seconds"),
    [
        (["--controllers=attacher"], 900),
        (["--controllers=attacher", "--resync=2s"], 2),
        (["--controllers=attacher", "--resync=0"], 0),
        (["--controllers=attacher", "--resync=-1s"], 0),
        (["--controllers=attacher", "--resync=1h", "--resync-period=7s"], 7),
        (["--controllers=attacher", "--resync=0", "--resync-period=7s"], 7),
        (["--controllers=all", "--attacher-resync=3s"], 3),
        (["--controllers=provisioner,attacher", "--resync=0"], 900),
        (["--controllers=provisioner,attacher", "--resync=24h"], 900),
        (["--controllers=all", "--snapshotter-resync-period=4s"], 4),
        (["--controllers=all", "--snapshot-controller-resync-period=4s", "--resync-period=9s"], 4),
        (["--controllers=resizer", "--resync-period=7s"], 7),
    ],
)
@pytest.mark.parametrize("command", ["run", "watcher", "worker"])
def test_a100_resync_is_another_name_of_the_period(command, argv, seconds):
    """A-031, A-100: csi-attacher's `--resync` retries failures before their backoff has ended."""
    redis = {"CSI_FLEET_REDIS_URL": "redis://127.0.0.1:9/0"}
    assert parse(command, argv, redis).resync_period_seconds == seconds


@pytest.mark.parametrize("name", WHOLE)
def test_a_controllers_settings_default_to_its_rows(name):
    found = parse("run", [f"--controllers={name}"], {}).controllers
    assert found
    for settings in found.values():
        assert settings == type(settings)()


def test_each_row_of_all_controllers_is_kept_somewhere_or_read_by_name():
    """The same holds for the flags that belong to no controller."""
    parts = [part for part in vars(load.settings).values() if is_dataclass(part)]
    kept = {one.metadata.get("flag") for part in [*parts, ToolSettings] for one in fields(part)}
    source = Path(load.__file__).read_text()
    read_by_name = set(re.findall(r'(?:values|FLAGS)\["([a-z-]+)"\]', source))
    files = {f"{whose}-password-file" for whose in re.findall(r'_password\("([a-z-]+)"', source)}
    rows = {flag.name for flag in (*COMMON_FLAGS, *OWN_FLAGS) if not flag.ignored}
    assert rows - kept - read_by_name - files == set()


@pytest.mark.parametrize("spec", catalogue.SPECS, ids=lambda spec: spec.name)
def test_each_row_is_kept_somewhere_or_says_why_not(spec):
    """A flag that is parsed and then dropped would seem to work."""
    kept = {
        one.metadata.get("flag")
        for settings in parse(
            "run", [f"--controllers={spec.part_of or spec.name}"], {}
        ).controllers.values()
        for one in fields(settings)
    }
    by_hand = {
        # The engine's own settings: KubeSettings, NodeSettings, DriverSettings, Settings.
        "kube-api-capacity-qps", "kube-api-capacity-burst", "timeout", "resync-period",
        "resync",
        "node-deployment", "node-deployment-immediate-binding", "node-deployment-base-delay",
        "node-deployment-max-delay",
        # Each of these has a rule of its own (SNA-007).
        "snapshot-name-prefix", "snapshot-name-uuid-length",
        "groupsnapshot-name-prefix", "groupsnapshot-name-uuid-length",
    }  # fmt: skip
    assert {flag.name for flag in spec.flags if not flag.ignored} - kept - by_hand == set()


def bounded():
    for spec in catalogue.SPECS:
        for flag in spec.flags:
            if flag.bound is not None:
                yield pytest.param(spec.part_of or spec.name, flag, id=f"{spec.name} {flag.name}")


@pytest.mark.parametrize(("controller", "flag"), list(bounded()))
@pytest.mark.parametrize("others", ["", ",all"])
def test_a_bound_holds_alone_and_beside_others(controller, flag, others):
    """With several controllers, the flag's name has the controller as prefix."""
    flags = flag_set(catalogue.choose(controller + others))
    name = flag.name if not others and flag.name in flags.flags else f"{controller}-{flag.name}"
    bad = "-2s" if flag.kind.value == "duration" else "-2"
    bad = "0" if flag.kind.value == "uint" else bad
    bad = ",".join("abcdefghijklmnopq") if flag.kind.value == "key,..." else bad
    with pytest.raises(ConfigError, match=f"--{name} must {flag.bound.says}"):
        parse("run", [f"--controllers={controller}{others}", f"--{name}={bad}"], {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  flags: {timeout: 0s}", "timeout must be greater than 0"),
        ("  flags: {volume-name-uuid-length: '33'}", "must be -1 or 1 to 32"),
        ("  controllers: {attacher: {flags: {timeout: 0s}}}", "timeout must be greater than 0"),
    ],
)
def test_a_bound_holds_in_the_drivers_file(text, problem):
    with pytest.raises(ConfigError, match=problem):
        driversfile.parse(f"{DRIVER}{text}\n", Path("drivers.yaml"))


def test_a_driver_has_its_own_value_of_what_its_row_allows():
    text = f"{DRIVER}  flags: {{timeout: 3s, capacity-threads: '2', strict-topology: 'true'}}\n"
    own = driversfile.parse(text, Path("f"))["d"].settings(parse("run", [], {}))
    assert (own.driver.timeout_seconds, own.capacity.threads) == (3.0, 2)
    assert own.provision.strict_topology
    with pytest.raises(ConfigError, match="node-deployment"):
        driversfile.parse(f"{DRIVER}  flags: {{node-deployment: 'true'}}\n", Path("f"))


def test_bounds_are_on_the_page():
    page = flags_markdown()
    assert "Must be at least 1s." in page
    assert "Must be -1 or 1 to 32." in page


def test_what_no_flag_gives_is_given_by_hand():
    """`read` gets each field once: from its flag or from the caller."""
    http = type(Settings().http)
    values = {"metrics-path": "/m", "enable-pprof": True, "metrics-token-review": False}
    found = read(http, values, endpoint=":1")
    assert (found.endpoint, found.metrics_path, found.pprof) == (":1", "/m", True)
