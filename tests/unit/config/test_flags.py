"""Every Go flag has its own name, its default and Go's syntax (section 2.1, C-145)."""

from __future__ import annotations

from operator import attrgetter

import pytest

from workers.config.flags import TOOLS, Command, Kind
from workers.config.flagsets import flag_set
from workers.config.flagtable import COMMON_FLAGS, OWN_FLAGS, REMOVED_BOOLS, REMOVED_VALUES
from workers.config.load import HelpRequested, parse, usage
from workers.controllers import catalogue
from workers.errors import ConfigError

CHOSEN = catalogue.choose("provisioner")
FLAGS = flag_set(CHOSEN).flags
UPSTREAM_FLAGS = [
    *COMMON_FLAGS,
    *(flag for spec in CHOSEN for flag in spec.flags if flag.upstream),
]

ENVIRONMENT = {"NODE_NAME": "n", "NAMESPACE": "ns", "POD_NAME": "p"}

# The table of section 2.1: flag, Go default, another value, settings field, the field's value.
SPEC = [
    ("csi-address", "/run/csi/socket", "/csi/csi.sock", "driver.csi_addresses", ("/csi/csi.sock",)),
    ("kubeconfig", "", "/k", "kube.kubeconfig", "/k"),
    ("master", "", "https://a", "kube.master", "https://a"),
    ("kube-api-qps", "50", "2.5", "kube.qps", 2.5),
    ("kube-api-burst", "100", "0x20", "kube.burst", 32),
    ("kube-api-capacity-qps", "1", "3", "kube.capacity_qps", 3.0),
    ("kube-api-capacity-burst", "5", "6", "kube.capacity_burst", 6),
    ("volume-name-prefix", "pvc", "vol", "provision.volume_name_prefix", "vol"),
    ("volume-name-uuid-length", "-1", "8", "provision.volume_name_uuid_length", 8),
    ("timeout", "10s", "1h30m", "driver.timeout_seconds", 5400.0),
    ("retry-interval-start", "1s", "500ms", "provision.retry_interval_start_seconds", 0.5),
    ("retry-interval-max", "5m", "30m", "provision.retry_interval_max_seconds", 1800.0),
    ("worker-threads", "100", "5", "provision.worker_threads", 5),
    ("cloning-protection-threads", "1", "2", "provision.cloning_protection_threads", 2),
    ("capacity-threads", "1", "3", "capacity.threads", 3),
    ("snapshot-orphan-sweep-interval", "5m", "0", "provision.snapshot_orphan_sweep_seconds", 0.0),
    ("strict-topology", "false", "true", "provision.strict_topology", True),
    ("immediate-topology", "true", "false", "provision.immediate_topology", False),
    ("extra-create-metadata", "false", "t", "provision.extra_create_metadata", True),
    ("default-fstype", "", "ext4", "provision.default_fstype", "ext4"),
    ("controller-publish-readonly", "false", "1", "provision.controller_publish_readonly", True),
    ("prevent-volume-mode-conversion", "true", "F", "provision.prevent_volume_mode_conversion",
     False),
    ("enable-capacity", "false", "TRUE", "capacity.enabled", True),
    ("capacity-for-immediate-binding", "false", "true", "capacity.for_immediate_binding", True),
    ("capacity-poll-interval", "1m", "2s", "capacity.poll_interval_seconds", 2.0),
    ("capacity-ownerref-level", "1", "-1", "capacity.ownerref_level", -1),
    ("node-deployment", "false", "true", "node.enabled", True),
    ("node-deployment-immediate-binding", "true", "0", "node.immediate_binding", False),
    ("node-deployment-base-delay", "20s", "500ms", "node.base_delay_seconds", 0.5),
    ("node-deployment-max-delay", "60s", "1s", "node.max_delay_seconds", 1.0),
    ("leader-election", "false", "true", "leader.enabled", True),
    ("leader-election-namespace", "", "x", "leader.namespace", "x"),
    ("leader-election-lease-duration", "15s", "20s", "leader.lease_duration_seconds", 20.0),
    ("leader-election-renew-deadline", "10s", "9s", "leader.renew_deadline_seconds", 9.0),
    ("leader-election-retry-period", "5s", "2s", "leader.retry_period_seconds", 2.0),
    ("leader-election-labels", "", "b:2,a:1", "leader.labels", (("a", "1"), ("b", "2"))),
    ("http-endpoint", "", ":8080", "http.endpoint", ":8080"),
    ("metrics-address", "", "[::1]:9", "http.endpoint", "[::1]:9"),
    ("metrics-path", "/metrics", "/m", "http.metrics_path", "/m"),
    ("enable-pprof", "false", "true", "http.pprof", True),
    ("feature-gates", "", "Topology=false", "gates.topology", False),
    ("automaxprocs", "false", "true", "explicit", frozenset({"automaxprocs"})),
    ("version", "false", "true", "show_version", True),
    ("v", "0", "5", "log.verbosity", 5),
    ("vmodule", "", "a=1,b=2", "explicit", frozenset({"vmodule"})),
    ("logging-format", "text", "json", "log.format", "json"),
    ("log-flush-frequency", "5s", "1s", "explicit", frozenset({"log-flush-frequency"})),
    ("log-text-split-stream", "false", "true", "explicit", frozenset({"log-text-split-stream"})),
    ("log-text-info-buffer-size", "0", "4Ki", "explicit",
     frozenset({"log-text-info-buffer-size"})),
    ("log-json-split-stream", "false", "true", "explicit", frozenset({"log-json-split-stream"})),
    ("log-json-info-buffer-size", "0", "512", "explicit",
     frozenset({"log-json-info-buffer-size"})),
]  # fmt: skip


def run(*argv, **environ):
    return parse("run", argv, ENVIRONMENT | environ)


def test_c145_the_flag_table_is_the_specified_one():
    """This detects a renamed, lost or added Go flag or default."""
    assert {(f.name, f.default) for f in UPSTREAM_FLAGS} == {row[:2] for row in SPEC}


@pytest.mark.parametrize("row", [pytest.param(row, id=f"C-145 {row[0]}") for row in SPEC])
@pytest.mark.parametrize("command", ["run", "worker"])
def test_flag_parses_both_ways(command, row):
    """C-145: `--f=v` works for all, `--f v` for all but booleans; both set the same field."""
    name, default, text, field, value = row
    environ = ENVIRONMENT | {"CSI_FLEET_REDIS_URL": "redis://r"}

    def value_of(*argv):
        found = attrgetter(field)(parse(command, argv, environ))
        return found - {"redis-url"} if field == "explicit" else found

    assert value_of(f"--{name}={text}") == value
    if FLAGS[name].kind is Kind.BOOL:
        assert value_of(f"--{name}", text) == value_of(f"--{name}=true")
    else:
        assert value_of(f"--{name}", text) == value
    assert value_of() != value
    if default and field != "explicit":
        assert value_of(f"--{name}={default}") == value_of()


@pytest.mark.parametrize("command", list(Command))
def test_c145_unknown_flag_is_a_usage_error_that_names_it(command):
    with pytest.raises(ConfigError, match="unknown flag: --no-such-flag") as caught:
        parse(command, ["--no-such-flag=hunter2"], {})
    assert caught.value.exit_code == 2
    assert "hunter2" not in str(caught.value)


def test_flag_of_another_command_is_refused_by_name():
    with pytest.raises(ConfigError, match="--strict-topology is a flag of run, worker, not of"):
        parse("watcher", ["--strict-topology"], {})


def test_unknown_command_lists_the_known():
    with pytest.raises(ConfigError, match="unknown command: serve; the commands are run, watcher"):
        parse("serve", [], {})


@pytest.mark.parametrize("text", ["a", "a:b:c", "a:1,b", "", "a:1,"])
def test_c145_label_list_with_a_bad_item_is_a_usage_error(text):
    with pytest.raises(ConfigError, match="malformed item in list of labels") as caught:
        run(f"--leader-election-labels={text}")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("argument", "message"), [
    ("--timeout=5", r'invalid argument "5" for "--timeout" flag: time: missing unit in duration'),
    ("--worker-threads=-1", "invalid syntax"),
    ("--kube-api-qps=fast", "strconv.ParseFloat"),
    ("--strict-topology=yes", "strconv.ParseBool"),
    ("--feature-gates=Topology", "malformed pair, expect string=bool"),
    ("--feature-gates=Topology=maybe", "invalid value of Topology: maybe"),
    ("--v=-1", r'for "-v, --v" flag'),
    ("--log-text-info-buffer-size=big", "quantities must match"),
    ("--vmodule=a", "pattern=N"),
    ("--timeout", "flag needs an argument: --timeout"),
    ("-v", "flag needs an argument: 'v' in -v"),
    ("--=x", "bad flag syntax: --=x"),
    ("-kubeconfig=x", "unknown shorthand flag: 'k' in -kubeconfig=x; write --kubeconfig"),
    ("-x", "unknown shorthand flag: 'x' in -x$"),
])  # fmt: skip
def test_bad_value_is_a_usage_error_in_gos_words(argument, message):
    with pytest.raises(ConfigError, match=message) as caught:
        run(argument)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("argv", [["-v5"], ["-v=5"], ["-v", "5"], ["--v=5"], ["--v", "5"]])
def test_verbosity_takes_every_spelling(argv):
    assert run(*argv).log.verbosity == 5


def test_the_last_scalar_wins_and_lists_and_maps_grow():
    settings = run(
        "--timeout=1s", "--timeout=2s", "--csi-address=/a", "--csi-address", "/b",
        "--csi-address=/a", "--feature-gates=Topology=false",
        "--feature-gates=CrossNamespaceVolumeDataSource=true",
    )  # fmt: skip
    assert settings.driver.timeout_seconds == 2
    assert settings.driver.csi_addresses == ("/a", "/b")
    assert not settings.gates.topology
    assert settings.gates.cross_namespace_volume_data_source


@pytest.mark.parametrize("spelling", ["--{}", "-{}", "--{}=true"])
@pytest.mark.parametrize("name", sorted(REMOVED_BOOLS))
def test_removed_flag_is_accepted_with_one_warning(name, spelling):
    """F-001: old manifests have klog's flags; Go refuses them, csi-fleet only warns."""
    settings = run(spelling.format(name), spelling.format(name.replace("-", "_")), "--timeout=3s")
    assert [w for w in settings.warnings if f"--{name} is ignored: " in w] == [*settings.warnings]
    assert len(settings.warnings) == 1
    assert settings.driver.timeout_seconds == 3


@pytest.mark.parametrize("name", sorted(REMOVED_VALUES))
def test_removed_flag_takes_its_value_along(name):
    settings = run(f"--{name}", "value", f"--{name}=value", "--timeout=3s")
    assert len(settings.warnings) == 1
    assert settings.arguments == ()
    assert settings.driver.timeout_seconds == 3


@pytest.mark.parametrize("flag", [f for f in FLAGS.values() if f.ignored], ids=lambda f: f.name)
def test_flag_without_meaning_here_warns_once(flag):
    text = {Kind.VMODULE: "a=1"}.get(flag.kind, flag.default)
    settings = run(f"--{flag.name}={text}", f"--{flag.name}={text}")
    assert [w for w in settings.warnings if flag.name in w] == list(settings.warnings)
    assert len(settings.warnings) == 1


def test_a_boolean_takes_no_separate_value_and_says_so():
    settings = run("--immediate-topology", "false", "--timeout=2s")
    assert settings.provision.immediate_topology
    assert settings.driver.timeout_seconds == 2
    assert "argument 'false' is ignored" in settings.warnings[0]


def test_double_dash_ends_the_flags():
    settings = parse("explain", ["--", "--timeout"], {})
    assert settings.arguments == ("--timeout",)


@pytest.mark.parametrize("argument", ["-h", "--help", "-help"])
def test_help_lists_exactly_the_commands_flags(argument):
    for command in Command:
        with pytest.raises(HelpRequested) as caught:
            parse(command, [argument], {})
        text = str(caught.value)
        assert text == usage(command)
        shown = {line.split("--")[1].split()[0] for line in text.splitlines() if " --" in line[:10]}
        # Flags without effect would distract a user who types a command.
        hidden = {f.name for f in FLAGS.values() if f.ignored and command in TOOLS}
        assert shown == {f.name for f in FLAGS.values() if command in f.commands} - hidden
        assert f"Usage: csi-fleet {command}" in text


@pytest.mark.parametrize(("shape", "argv"), [
    ("DP-001", ["--csi-address=/csi/csi.sock", "--leader-election", "--http-endpoint=:8080"]),
    ("DP-002", ["--csi-address=/csi/csi.sock", "--leader-election", "--http-endpoint=:8080",
                "--enable-capacity", "--capacity-ownerref-level=2"]),
    ("DP-003", ["-v=5", "--csi-address=/csi/csi.sock", "--feature-gates=Topology=true"]),
    ("DP-004", ["-v=5", "--csi-address=/csi/csi.sock", "--feature-gates=Topology=true",
                "--enable-capacity", "--capacity-ownerref-level=0", "--node-deployment=true",
                "--strict-topology=true", "--immediate-topology=false", "--worker-threads=5"]),
    ("DP-005", ["--timeout=300s", "--extra-create-metadata", "--default-fstype=ext4",
                "--kube-api-qps=100", "--kube-api-burst=200", "--worker-threads=10",
                "--retry-interval-start=500ms", "--retry-interval-max=30m",
                "--leader-election-namespace=kube-system", "--strict-topology"]),
])  # fmt: skip
def test_argument_lists_of_common_manifests_parse(shape, argv):
    settings = run(*argv)
    assert [w for w in settings.warnings if "GA feature gate" not in w] == []


def test_own_flags_have_unique_names_and_do_not_shadow_upstreams():
    own = [*OWN_FLAGS, *(flag for spec in CHOSEN for flag in spec.flags if not flag.upstream)]
    assert len(FLAGS) == len(UPSTREAM_FLAGS) + len(own)
    assert not any(flag.upstream for flag in OWN_FLAGS)
