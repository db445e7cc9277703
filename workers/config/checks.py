"""Checks that the settings work together: one function per rule, one clear line per failure.

The exit codes are csi-provisioner's (F-014): 1 for invalid logging flags and for two HTTP addresses
at once, 255 for a missing environment variable and for unusable listen addresses, 2 for everything
else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from workers.config.commandline import synopsis
from workers.config.flags import SUMMARIES, TOOLS, Command
from workers.config.flagvalues import parse_listen_address
from workers.config.redisurl import (
    SCHEMES,
    check_place,
    is_loopback,
    is_sentinel,
    parse_sentinels,
)
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.config.flagsets import FlagSet
    from workers.config.settings import FlowerSettings, RedisSettings, Settings

_DRIVER_COMMANDS: Final = {Command.RUN, Command.WORKER}
_CLUSTER_COMMANDS: Final = _DRIVER_COMMANDS | {Command.WATCHER}
_REDIS_COMMANDS: Final = {Command.WATCHER, Command.WORKER, Command.BEAT, Command.FLOWER}

# client-go, leaderelection.go: jitter may lengthen the delay before a retry by this factor.
_JITTER_FACTOR: Final = 1.2

# The minimum length of a signing key, in characters.
_SHORTEST_KEY: Final = 32
# The value of --flower-oidc-provider -> Flower's login handler for it.
OIDC_PROVIDERS: Final = {
    "google": "GoogleAuth2LoginHandler",
    "github": "GithubLoginHandler",
    "gitlab": "GitLabLoginHandler",
    "okta": "OktaLoginHandler",
}
_LOOPBACK: Final = {"127.0.0.1", "::1", "localhost"}


def check(settings: Settings, values: Mapping[str, Any], flags: FlagSet) -> None:
    """Refuse settings that cannot work.

    Args:
        settings: the settings.
        values: the flag values, keyed by flag name, for rules about individual flags.
        flags: the flags, each with its allowed values.

    Raises:
        ConfigError: a rule is broken; the first such rule is reported, in the order of
            csi-provisioner's startup (F-010).
    """
    _check_arguments(settings)
    _check_logging(settings)
    _check_node(settings)
    _check_http(settings, values)
    _check_bounds(values, flags)
    _check_capacity(settings)
    _check_leader(settings)
    _check_redis(settings.command, settings.redis)
    _check_flower(settings)
    _check_blocks(settings)


def advise(settings: Settings) -> list[str]:
    """Return warnings about settings that may not do what a user expects."""
    warnings: list[str] = []
    if settings.command not in TOOLS:
        warnings += [
            f"argument {text!r} is ignored. To give a boolean flag a value, write it with `=`, as "
            "in --flag=false"
            for text in settings.arguments
        ]
    if {"leader-election", "node-deployment"} <= settings.explicit and settings.node.enabled:
        warnings.append(
            "leader election is disabled in node deployment; with it, only one node would "
            "provision volumes"
        )
    has_password = bool(settings.redis.password)
    if settings.command in _DRIVER_COMMANDS and has_password and not settings.redis.record_keys:
        warnings.append(
            "records in Redis are not signed, so anybody who can write to Redis can have volumes "
            "created. Start every worker with --records-key-file (docs/security.md)"
        )
    if "csi-address" in settings.explicit and not settings.driver.csi_addresses:
        warnings.append(
            "flag --csi-address has no effect: the selected controllers do not call a CSI driver"
        )
    if "metrics-address" in settings.explicit:
        warnings.append("flag --metrics-address is deprecated: use --http-endpoint")
    if settings.http.pprof and not settings.http.endpoint:
        warnings.append("flag --enable-pprof has no effect without --http-endpoint")
    if settings.provision.cloning_protection_threads == 0:
        warnings.append(
            "with --cloning-protection-threads=0, the finalizer of clone sources is never removed"
        )
    if settings.capacity.enabled and settings.capacity.threads == 0:
        warnings.append("with --capacity-threads=0, no storage capacity is published")
    return warnings


def _check_arguments(settings: Settings) -> None:
    """Refuse arguments of a tool that accepts none: the user must have meant something else."""
    command, arguments = settings.command, settings.arguments
    words, _ = SUMMARIES[command]
    if command in TOOLS and arguments and (not words or words.startswith("-")):
        raise ConfigError(f"unexpected argument {arguments[0]!r}. Run `{synopsis(command)}`")


def _check_logging(settings: Settings) -> None:
    if settings.log.format not in {"text", "json"}:
        raise ConfigError(
            f'logging-format: Invalid value: "{settings.log.format}": Unsupported log format; '
            "use text or json",
            exit_code=1,
        )


def _check_node(settings: Settings) -> None:
    if settings.node.enabled and settings.process.shadow:
        raise ConfigError(
            "--shadow cannot be combined with --node-deployment: a shadow does not ask the "
            "driver for its node. Remove one of the two flags"
        )
    if settings.node.enabled and not settings.node.node_name:
        raise ConfigError(
            "The NODE_NAME environment variable must be set when using --node-deployment.",
            exit_code=255,
        )


def _check_http(settings: Settings, values: Mapping[str, Any]) -> None:
    if values["http-endpoint"] and values["metrics-address"]:
        raise ConfigError(
            "only one of `--metrics-address` and `--http-endpoint` can be set.", exit_code=1
        )
    if settings.http.endpoint:
        try:
            parse_listen_address(settings.http.endpoint)
        except ValueError as error:
            raise ConfigError(f"--http-endpoint: {error}", exit_code=255) from error
    if not settings.http.metrics_path.startswith("/"):
        raise ConfigError(f"--metrics-path must start with /: {settings.http.metrics_path!r}")


def _check_bounds(values: Mapping[str, Any], flags: FlagSet) -> None:
    for name, value in values.items():
        flag = flags.find(name)
        if flag is not None and (problem := flag.problem(value)):
            raise ConfigError(f"--{problem}")


def _check_capacity(settings: Settings) -> None:
    capacity = settings.capacity
    if not capacity.enabled or settings.command not in _CLUSTER_COMMANDS:
        return
    if not capacity.namespace:
        raise ConfigError(
            "need NAMESPACE env variable for CSIStorageCapacity objects", exit_code=255
        )
    owner_wanted = capacity.ownerref_level >= 0 and settings.command in _DRIVER_COMMANDS
    if owner_wanted and not capacity.pod_name:
        raise ConfigError(
            "need POD_NAME env variable to determine CSIStorageCapacity owner", exit_code=255
        )


def _check_leader(settings: Settings) -> None:
    leader = settings.leader
    if not leader.enabled:
        return
    if leader.retry_period_seconds <= 0:
        raise ConfigError("--leader-election-retry-period must be greater than 0")
    if leader.lease_duration_seconds <= leader.renew_deadline_seconds:
        raise ConfigError(
            "--leader-election-lease-duration must be greater than --leader-election-renew-deadline"
        )
    if leader.renew_deadline_seconds <= _JITTER_FACTOR * leader.retry_period_seconds:
        raise ConfigError(
            "--leader-election-renew-deadline must be greater than 1.2 times "
            "--leader-election-retry-period"
        )


def _check_redis(command: Command, redis: RedisSettings) -> None:
    url = redis.url
    if not url and command in _REDIS_COMMANDS:
        raise ConfigError(
            f"`{command}` needs a Redis server: set --redis-url or the environment variable "
            "CSI_FLEET_REDIS_URL"
        )
    if url and not url.startswith(SCHEMES):
        raise ConfigError("--redis-url must start with redis://, rediss://, unix:// or sentinel://")
    if "password" in parse_qs(url.partition("?")[2]):
        raise ConfigError(
            "--redis-url must not contain password=. Set the environment variable "
            "CSI_FLEET_REDIS_PASSWORD instead"
        )
    try:
        check_place(url)
    except ValueError as error:
        raise ConfigError(f"--redis-url: {error}") from None
    _check_plain(redis)
    _check_record_keys(redis.record_keys)


def _check_record_keys(lines: tuple[str, ...]) -> None:
    if any(len(line) < _SHORTEST_KEY and line != "unsigned" for line in lines):
        raise ConfigError(
            f"--records-key-file: a key is shorter than {_SHORTEST_KEY} characters. Write one key "
            "per line; generate a key with `openssl rand -hex 32`"
        )


def _check_plain(redis: RedisSettings) -> None:
    """Refuse to send a password over a network without TLS, where others can read it."""
    if redis.is_insecure or not (redis.password or redis.sentinel_password):
        return
    if is_sentinel(redis.url):
        place = parse_sentinels(redis.url)
        hosts = [] if place.tls else [host for host, _ in place.hosts]
    else:
        plain = redis.url.startswith("redis://")
        hosts = [urlsplit(redis.url).hostname or ""] if plain else []
    for host in hosts:
        if not is_loopback(host):
            raise ConfigError(
                f"--redis-url: the password would be sent to {host} unencrypted. Use rediss:// "
                "(for sentinel://, add ssl_ca_certs=...), or set --redis-insecure=true if nobody "
                "else can read the network traffic"
            )


def _check_flower(settings: Settings) -> None:
    if settings.command != Command.FLOWER:
        return
    flower = settings.flower
    if any(not all(entry.partition(":")[::2]) for entry in flower.basic_auth):
        raise ConfigError(
            "Flower's logins are malformed. Write one user:password per line in "
            "--flower-basic-auth-file, or separate them with commas in CSI_FLEET_FLOWER_BASIC_AUTH"
        )
    _check_flower_oidc(flower)
    if any(flower.tls) and not all(flower.tls):
        raise ConfigError(
            "--flower-tls-cert-file and --flower-tls-key-file must be set together: set both "
            "or neither"
        )
    public = flower.address not in _LOOPBACK
    if public and not flower.basic_auth and flower.oidc is None:
        raise ConfigError(
            f"--flower-address={flower.address} can be reached from other hosts, but Flower has no "
            "login. Set --flower-basic-auth-file, the environment variable "
            "CSI_FLEET_FLOWER_BASIC_AUTH or --flower-oidc-provider"
        )
    if public and not any(flower.tls) and not flower.plain_http:
        raise ConfigError(
            f"--flower-address={flower.address} can be reached from other hosts, but Flower serves "
            "plain HTTP. Set --flower-tls-cert-file and --flower-tls-key-file, or set "
            "--flower-plain-http if a proxy in front of Flower encrypts the traffic"
        )


def _check_blocks(settings: Settings) -> None:
    blocks = settings.blocks
    if settings.command == Command.SNAPSHOT_METADATA and not (blocks.certificate and blocks.key):
        raise ConfigError(
            "callers send their tokens over TLS only. Set --tls-cert and --tls-key to the files of "
            "a certificate that the caCert of the SnapshotMetadataService objects has signed"
        )


def _check_flower_oidc(flower: FlowerSettings) -> None:
    oidc = flower.oidc
    if oidc is None:
        return
    if oidc.provider not in OIDC_PROVIDERS:
        raise ConfigError(f"--flower-oidc-provider must be one of {', '.join(OIDC_PROVIDERS)}")
    if not (oidc.allowed and oidc.client_id and oidc.secret and oidc.redirect_uri):
        raise ConfigError(
            "--flower-oidc-provider is incomplete. Also set --flower-oidc-allowed, "
            "--flower-oidc-client-id, --flower-oidc-secret-file and --flower-oidc-redirect-uri"
        )
    if flower.basic_auth:
        raise ConfigError(
            "Flower has two kinds of login. Use either --flower-oidc-provider or user and "
            "password, not both"
        )
