"""Unusable settings are refused in one line, with the Go sidecar's exit code (F-014)."""

from __future__ import annotations

import dataclasses

import pytest

from workers.config.flags import TOOLS, Command
from workers.config.load import parse
from workers.cpuquota import available_cpus
from workers.errors import ConfigError

ELECTED = ["--leader-election"]


@pytest.mark.parametrize(("argv", "environ", "code", "message"), [
    pytest.param(["--node-deployment"], {}, 255, "The NODE_NAME environment variable must be set",
                 id="C-138 node deployment without NODE_NAME"),
    pytest.param(["--http-endpoint=:1", "--metrics-address=:2"], {}, 1,
                 "only one of `--metrics-address` and `--http-endpoint` can be set.",
                 id="C-139 both HTTP addresses"),
    pytest.param(["--enable-capacity"], {"POD_NAME": "p"}, 255, "need NAMESPACE env variable",
                 id="F-002 capacity without NAMESPACE"),
    pytest.param(["--enable-capacity"], {"NAMESPACE": "n"}, 255, "need POD_NAME env variable",
                 id="F-002 capacity without POD_NAME"),
    pytest.param(["--logging-format=xml"], {}, 1, "Unsupported log format", id="F-014 logging"),
    pytest.param(["--http-endpoint=8080"], {}, 255, "missing port", id="F-014 listen address"),
    pytest.param(["--feature-gates=a b=true"], {}, 255, "unrecognized feature gate: a b",
                 id="F-003 no gate name"),
    *[pytest.param([f"--volume-name-uuid-length={n}"], {}, 2, "-1 or 1 to 32", id=f"D-005 {n}")
      for n in (-2, 0, 33)],
    *[pytest.param([f"--{name}={bad}"], {}, 2, f"--{name} must", id=f"{name} {bad}")
      for name, bad in [
          ("timeout", "0"), ("timeout", "-1s"), ("retry-interval-start", "0"),
          ("retry-interval-max", "-1s"), ("capacity-poll-interval", "0"),
          ("snapshot-orphan-sweep-interval", "-1s"), ("node-deployment-base-delay", "0"),
          ("node-deployment-max-delay", "-1s"), ("lease-ttl", "500ms"), ("resync-period", "0"),
          ("worker-threads", "0"), ("capacity-ownerref-level", "-2"), ("metrics-path", "m"),
          ("leader-election-retry-period", "-1s"),
      ]],
    pytest.param([*ELECTED, "--leader-election-renew-deadline=15s"], {}, 2, "lease-duration must",
                 id="renew deadline not below lease duration"),
    pytest.param([*ELECTED, "--leader-election-retry-period=9s"], {}, 2, "1.2 times",
                 id="retry period too near the deadline"),
    pytest.param([*ELECTED, "--leader-election-retry-period=0"], {}, 2, "greater than 0",
                 id="retry period zero"),
    pytest.param(["--redis-url=http://x"], {}, 2, "must start with", id="redis scheme"),
    pytest.param(["--redis-url=redis://x?password=hush"], {}, 2, "must not contain password",
                 id="redis password in the query"),
    pytest.param(["--redis-password-file=/does/not/exist"], {}, 2, "cannot read",
                 id="redis password file"),
])  # fmt: skip
def test_refused(argv, environ, code, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse("run", argv, environ)
    assert caught.value.exit_code == code
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("argv", "environ", "message"), [
    pytest.param(["--flower-address=0.0.0.0"], {}, "Flower has no login", id="open Flower"),
    pytest.param(
        ["--flower-address=0.0.0.0"], {"CSI_FLEET_FLOWER_BASIC_AUTH": "a:b"},
        "--flower-plain-http", id="open Flower in clear",
    ),
    pytest.param(["--flower-tls-cert-file=x"], {}, "must be set together", id="certificate alone"),
    pytest.param(["--flower-oidc-provider=x"], {}, "must be one of google", id="provider"),
    pytest.param(["--flower-oidc-provider=okta"], {}, "is incomplete", id="half a provider"),
    pytest.param([], {"CSI_FLEET_FLOWER_BASIC_AUTH": "hush"}, "user:password",
                 id="Flower login without colon"),
    *[pytest.param([f"--flower-port={port}"], {}, "1 to 65535", id=f"port {port}")
      for port in (0, 65536)],
])  # fmt: skip
def test_refused_by_flower(argv, environ, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse("flower", ["--redis-url=redis://r", *argv], environ)
    assert caught.value.exit_code == 2
    assert "hush" not in str(caught.value)


def test_run_starts_no_flower_and_takes_none_of_its_flags():
    with pytest.raises(ConfigError, match="flower-port"):
        parse("run", ["--flower-port=5555"], {})


@pytest.mark.parametrize("command", ["watcher", "worker", "beat", "flower"])
def test_every_part_but_run_needs_redis(command):
    with pytest.raises(ConfigError, match=f"`{command}` needs a Redis server"):
        parse(command, [], {})
    assert parse(command, [], {"CSI_FLEET_REDIS_URL": "redis://r"}).redis.url == "redis://r"


@pytest.mark.parametrize("argv", [
    ["--volume-name-uuid-length=-1"], ["--volume-name-uuid-length=1"],
    ["--volume-name-uuid-length=32"], ["--snapshot-orphan-sweep-interval=0"],
    ["--node-deployment-max-delay=0"], ["--retry-interval-start=10s", "--retry-interval-max=1s"],
    ["--http-endpoint=", "--metrics-address=:1"], ["--volume-name-prefix="],
    ["--leader-election-lease-duration=1s"],
])  # fmt: skip
def test_allowed_as_upstream_allows_it(argv):
    parse("run", argv, {})


def test_c138_comes_before_all_checks_of_addresses():
    """F-010: the missing variable is reported first."""
    argv = ["--node-deployment", "--http-endpoint=:1", "--metrics-address=:2"]
    with pytest.raises(ConfigError) as caught:
        parse("run", argv, {})
    assert caught.value.exit_code == 255


def test_version_needs_nothing_else():
    assert parse("worker", ["--version", "--volume-name-uuid-length=99"], {}).show_version
    assert parse("version", [], {}).command == "version"


def test_leader_election_is_off_in_node_deployment_with_a_warning():
    """F-021: a single Lease for all nodes would leave all but one idle."""
    argv = ["--leader-election", "--node-deployment", "--http-endpoint=:1"]
    settings = parse("run", argv, {"NODE_NAME": "n"})
    assert not settings.leader.enabled
    assert not settings.http.leader_health
    assert "leader election is disabled in node deployment" in settings.warnings[0]


@pytest.mark.parametrize(("argv", "expected"), [
    (["--leader-election", "--http-endpoint=:1"], True),
    (["--leader-election", "--metrics-address=:1"], False),
    (["--http-endpoint=:1"], False),
    (["--leader-election"], False),
])  # fmt: skip
def test_c143_leader_health_needs_election_and_http_endpoint(argv, expected):
    assert parse("run", argv, {}).http.leader_health is expected


def test_kubeconfig_variable_overrides_the_flag():
    """F-002: this is the reverse of csi-fleet's own variables, which only fill gaps."""
    given = (["--kubeconfig=/flag", "--redis-url=redis://h"], {"KUBECONFIG": "/env"})
    assert parse("worker", *given).kube.kubeconfig == "/env"
    assert parse("watcher", *given).kube.kubeconfig == "/env"
    assert parse("run", *given, program="csi-provisioner").kube.kubeconfig == "/env"
    redis = parse("run", ["--redis-url=redis://flag"], {"CSI_FLEET_REDIS_URL": "redis://env"}).redis
    assert redis.url == "redis://flag"


@pytest.mark.parametrize("command", sorted({Command.RUN, *TOOLS} - {Command.COMPLETION}))
def test_a_kubeconfig_that_somebody_typed_is_the_one(command):
    """As in kubectl, the flag wins: `pause` must not pause a driver in another cluster."""
    environ = {"KUBECONFIG": "/env"}
    assert parse(command, ["--kubeconfig=/flag"], environ).kube.kubeconfig == "/flag"
    assert parse(command, [], environ).kube.kubeconfig == "/env"


def test_namespaces_come_from_pod_then_service_account_then_default(tmp_path):
    mounted = tmp_path / "namespace"
    mounted.write_text("mounted\n", encoding="utf-8")

    def namespaces(argv, environ, file):
        settings = parse("run", argv, environ, namespace_file=file)
        return settings.kube.namespace, settings.leader.namespace

    both = {"POD_NAMESPACE": "pod", "NAMESPACE": "other"}
    assert namespaces([], both, mounted) == ("pod", "pod")
    assert namespaces([], {}, mounted) == ("mounted", "mounted")
    assert namespaces([], {}, tmp_path / "absent") == ("default", "default")
    assert namespaces(["--namespace=own"], both, mounted) == ("own", "pod")
    assert namespaces(["--leader-election-namespace=l"], both, mounted) == ("pod", "l")


def test_redis_login_leaves_the_url_and_every_text():
    settings = parse("run", ["--redis-url=rediss://me:hu%40sh@h:1/2?ssl_ca_certs=/ca"], {})
    assert settings.redis.url == "rediss://h:1/2?ssl_ca_certs=/ca"
    assert (settings.redis.username, settings.redis.password) == ("me", "hu@sh")
    assert "hu@sh" not in repr(settings)
    assert settings.redis.url_with_credentials() == "rediss://me:hu%40sh@h:1/2?ssl_ca_certs=/ca"
    assert "can be read in the process list" in settings.warnings[0]


def test_redis_password_from_file_wins_over_variable_and_url(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("from-file\n", encoding="utf-8")
    environ = {
        "CSI_FLEET_REDIS_URL": "unix://:from-url@/run/r.sock?db=1",
        "CSI_FLEET_REDIS_PASSWORD": "from-variable",
    }
    redis = parse("run", [], environ).redis
    assert (redis.url, redis.password) == ("unix:///run/r.sock?db=1", "from-variable")
    redis = parse("run", [f"--redis-password-file={secret}"], environ).redis
    assert redis.password == "from-file"
    assert redis.url_with_credentials() == "unix://:from-file@/run/r.sock?db=1"
    assert not any("process list" in one for one in parse("run", [], environ).warnings)


def test_flower_login_opens_other_addresses(tmp_path):
    secret = tmp_path / "logins"
    secret.write_text("a:1\nb:2\n", encoding="utf-8")
    argv = ["--flower-address=0.0.0.0", "--flower-plain-http", f"--flower-basic-auth-file={secret}"]
    argv.append("--redis-url=redis://r")
    flower = parse("flower", argv, {}).flower
    assert flower.basic_auth == ("a:1", "b:2")
    assert "a:1" not in repr(flower)
    environ = {"CSI_FLEET_FLOWER_BASIC_AUTH": "c:3, d:4"}
    assert parse("flower", [*argv[:2], argv[-1]], environ).flower.basic_auth == ("c:3", "d:4")


def test_drivers_file_replaces_the_default_socket_only():
    assert parse("run", ["--drivers-file=/d"], {}).driver.csi_addresses == ()
    argv = ["--drivers-file=/d", "--csi-address=/a"]
    assert parse("run", argv, {}).driver.csi_addresses == ("/a",)


def test_concurrency_follows_worker_threads():
    def concurrency(*argv):
        return parse("run", argv, {}).process.concurrency

    assert concurrency() == 64
    assert concurrency("--worker-threads=5") == 10
    assert concurrency("--worker-threads=5", "--concurrency=7") == 7


@pytest.mark.parametrize(("files", "cpus"), [
    ({"cpu.max": "250000 100000"}, 2),
    ({"cpu.max": "50000 100000"}, 1),
    ({"cpu.max": "max 100000"}, None),
    ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ({"cpu.max": "nonsense"}, None),
    ({}, None),
])  # fmt: skip
def test_cpu_quota(tmp_path, files, cpus):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    granted = available_cpus(tmp_path / "nothing here")
    assert available_cpus(tmp_path) == min(cpus or granted, granted)


def test_settings_cannot_be_changed():
    settings = parse("run", [], {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.driver.timeout_seconds = 1
    assert hash(settings) == hash(parse("run", [], {}))


@pytest.mark.parametrize(("argv", "warning"), [
    (["--enable-pprof"], "--enable-pprof has no effect without --http-endpoint"),
    (["--metrics-address=:1"], "--metrics-address is deprecated"),
    (["--cloning-protection-threads=0"], "finalizer of clone sources is never removed"),
])  # fmt: skip
def test_advice(argv, warning):
    assert warning in parse("run", argv, {}).warnings[0]


@pytest.mark.parametrize(
    ("argv", "rate"),
    [
        ([], (50.0, 100)),
        (["--kube-api-qps=0", "--kube-api-burst=0"], (5.0, 10)),
        (["--kube-api-qps=-1"], (0.0, 100)),
        (["--kube-api-qps=7", "--kube-api-burst=9"], (7.0, 9)),
    ],
)
@pytest.mark.parametrize("command", ["worker", "watcher", "status"])
def test_request_rate_holds_for_every_process(command, argv, rate):
    """OPS-2: the flag's documented default applies whether the flag is set or not."""
    environ = {"CSI_FLEET_REDIS_URL": "redis://h"}
    assert parse(command, argv, environ).kube.rate() == rate
