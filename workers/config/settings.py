"""The settings of a process, as frozen dataclasses; `workers.config.load` builds them.

Durations are in seconds. Defaults come from the flags' rows, so a test can write `Settings()` or
`Settings(provision=ProvisionSettings(worker_threads=2))`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from workers.config.flagfields import setting, taken
from workers.config.flags import Command
from workers.config.flagtable import FLAGS
from workers.config.gates import FeatureGates
from workers.config.redisurl import with_sentinel_login
from workers.config.toolflags import ToolSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """The drivers that a worker serves, and the deadline for calls."""

    csi_addresses: tuple[str, ...] = setting("csi-address", FLAGS)
    """The sockets of the drivers in this process's pod; empty in central mode."""

    provisioners: tuple[str, ...] = setting("provisioner", FLAGS)
    """The plug-ins to serve, each as `module:class` or the name of an entry point."""

    drivers_file: str = setting("drivers-file", FLAGS)
    """The path of the YAML file of central mode; "" for none."""

    drivers_pool: str = setting("drivers-pool", FLAGS)
    """The pool of the file's drivers that this worker serves; "" for the drivers without a pool."""

    timeout_seconds: float = taken("timeout", default=10.0)
    """The deadline of each CSI call; it must be above 0."""


@dataclass(frozen=True, slots=True)
class KubeSettings:
    """How to reach the API server."""

    kubeconfig: str = ""
    """The path of the client configuration, from KUBECONFIG or the flag; "" means in-cluster."""

    master: str = setting("master", FLAGS)
    """The URL of the API server; "" uses the URL from the kubeconfig or the cluster."""

    qps: float = setting("kube-api-qps", FLAGS)
    """One process's requests per second; 0 means client-go's default of 5, below 0 no limit."""

    burst: int = setting("kube-api-burst", FLAGS)
    """The burst allowed above `qps`; 0 means client-go's default of 10."""

    capacity_qps: float = taken("kube-api-capacity-qps", default=1.0)
    """Writes of capacity objects per second for each driver, across all processes."""

    capacity_burst: int = taken("kube-api-capacity-burst", default=5)
    """The burst allowed above `capacity_qps`."""

    namespace: str = "default"
    """The namespace of the system's own objects (intents).

    It is POD_NAMESPACE or the service account's namespace.
    """

    def rate(self) -> tuple[float, int]:
        """Return the requests per second (0 means no limit) and the burst for a client."""
        return max(0.0, self.qps or 5.0), self.burst or 10


@dataclass(frozen=True, slots=True)
class ProvisionSettings:
    """The rules for creating and deleting volumes."""

    volume_name_prefix: str = taken("volume-name-prefix", default="pvc")
    """The first part of volume names. If it is empty, every claim fails (P-121)."""

    volume_name_uuid_length: int = taken("volume-name-uuid-length", default=-1)
    """The length (1 to 32) to which the dashless UID is cut; -1 (default) keeps the UID as is."""

    default_fstype: str = taken("default-fstype", default="")
    """The file system to use if the class names none; "" leaves the choice to the driver."""

    extra_create_metadata: bool = taken("extra-create-metadata", default=False)
    """True if CreateVolume requests contain the names of the claim and the volume."""

    claim_labels_to_pv: tuple[str, ...] = taken("claim-labels-to-pv", default=())
    """The keys of the claims' labels that their PVs get too."""

    claim_labels_to_driver: tuple[str, ...] = taken("claim-labels-to-driver", default=())
    """The keys of the claims' labels that become parameters of CreateVolume."""

    claim_annotations_to_driver: tuple[str, ...] = taken("claim-annotations-to-driver", default=())
    """The keys of the claims' annotations that become parameters of CreateVolume."""

    controller_publish_readonly: bool = taken("controller-publish-readonly", default=False)
    """True if a PV whose only access mode is ReadOnlyMany is published read-only."""

    prevent_volume_mode_conversion: bool = taken("prevent-volume-mode-conversion", default=True)
    """True if a restore is not allowed to change the volume mode."""

    strict_topology: bool = taken("strict-topology", default=False)
    """True if late binding uses only the selected node's topology."""

    immediate_topology: bool = taken("immediate-topology", default=True)
    """True if immediate binding uses all topologies of the cluster."""

    retry_interval_start_seconds: float = taken("retry-interval-start", default=1.0)
    """The first retry interval; it must be above 0."""

    retry_interval_max_seconds: float = taken("retry-interval-max", default=300.0)
    """The longest retry interval; it must be above 0."""

    worker_threads: int = taken("worker-threads", default=100)
    """How many creations, and how many deletions, may run at once for one driver; at least 1."""

    cloning_protection_threads: int = taken("cloning-protection-threads", default=1)
    """The maximum number of simultaneous removals of the clone finalizer; 0 disables them."""

    snapshot_orphan_sweep_seconds: float = taken("snapshot-orphan-sweep-interval", default=300.0)
    """The period of the sweep of snapshot finalizers; 0 disables the sweep."""


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """The settings for CSIStorageCapacity objects."""

    enabled: bool = taken("enable-capacity", default=False)
    """True if the capacity of the storage backend is published."""

    for_immediate_binding: bool = taken("capacity-for-immediate-binding", default=False)
    """True if classes with immediate binding get capacity objects too."""

    poll_interval_seconds: float = taken("capacity-poll-interval", default=60.0)
    """The period of the full refresh; it must be above 0."""

    ownerref_level: int = taken("capacity-ownerref-level", default=1)
    """The number of steps from the pod to the owner of the objects; -1 for no owner."""

    threads: int = taken("capacity-threads", default=1)
    """The maximum number of simultaneous GetCapacity calls per driver; 0 disables them."""

    always_topology: bool = taken("capacity-always-topology", default=False)
    """True if GetCapacity requests contain a topology even if the driver does not support it."""

    namespace: str = ""
    """The namespace of the objects, from the variable NAMESPACE; set if `enabled`."""

    pod_name: str = ""
    """The pod from which the owner is looked up, from the variable POD_NAME; set if needed."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings for node deployment: one provisioner per node (section 5)."""

    enabled: bool = False
    """True if this process provisions only the claims of its node."""

    node_name: str = ""
    """The node's name, from the variable NODE_NAME; set if `enabled`."""

    immediate_binding: bool = taken("node-deployment-immediate-binding", default=True)
    """True if this node competes for claims with immediate binding."""

    base_delay_seconds: float = taken("node-deployment-base-delay", default=20.0)
    """The first wait before this node takes a claim with immediate binding; it must be above 0."""

    max_delay_seconds: float = taken("node-deployment-max-delay", default=60.0)
    """The longest wait before this node takes a claim with immediate binding."""


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The settings for the Lease that the Go sidecar would hold."""

    enabled: bool = False
    """True if this process competes for a Lease; always off in node deployment."""

    namespace: str = "default"
    """The namespace of the Lease."""

    lease_duration_seconds: float = setting("leader-election-lease-duration", FLAGS)
    """The time after which a holder that does not renew loses the Lease."""

    renew_deadline_seconds: float = setting("leader-election-renew-deadline", FLAGS)
    """The time within which the holder must renew the Lease; shorter than the lease duration."""

    retry_period_seconds: float = setting("leader-election-retry-period", FLAGS)
    """The time between two attempts to acquire or renew the Lease."""

    labels: tuple[tuple[str, str], ...] = ()
    """The labels of the Lease as sorted pairs; `dict(labels)` returns them for a manifest."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The settings for the HTTP server that serves metrics, health checks and profiles."""

    endpoint: str = ""
    """The listen address, such as `:8080`; "" for no server."""

    metrics_path: str = setting("metrics-path", FLAGS)
    """The path of the metrics."""

    token_review: bool = setting("metrics-token-review", FLAGS)
    """True if the API server decides who may read the metrics."""

    pprof: bool = setting("enable-pprof", FLAGS)
    """True if /debug/pprof/ is served."""

    leader_health: bool = False
    """True if /healthz/leader-election is served; needs leader election and an endpoint (F-022)."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings for log lines."""

    verbosity: int = setting("v", FLAGS)
    """klog's verbosity level, 0 to about 10."""

    format: str = setting("logging-format", FLAGS)
    """The format: `text` (klog's layout) or `json`."""


CELERY_USERS: Final = {"watcher": "publisher", "worker": "broker"}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How to reach Redis. The URL contains no credentials, so that it can be logged."""

    url: str = ""
    """The URL without user and password; "" means that `run` starts a Redis."""

    username: str = ""
    """The user name; "" for Redis's default user."""

    password: str = field(default="", repr=False)
    """The password; "" for none. It is never shown by `repr`."""

    broker_username: str = setting("redis-broker-username", FLAGS)
    """The user for Celery's connection, with the same password; "" for `for_celery`'s default."""

    password_file: str = ""
    """The file that contains `password`, reread for each new connection; "" if there is none."""

    sentinel_username: str = ""
    """The user name for the sentinels; "" for their default user."""

    sentinel_password: str = field(default="", repr=False)
    """The password for the sentinels; "" for none. It is never shown by `repr`."""

    sentinel_password_file: str = ""
    """The file that contains `sentinel_password`; it is reread like `password_file`."""

    record_keys: tuple[str, ...] = field(default=(), repr=False)
    """The keys with which workers sign records (the lines of the key file); () for no signing."""

    is_insecure: bool = setting("redis-insecure", FLAGS)
    """True if a password may be sent over a connection without TLS."""

    def for_celery(self) -> RedisSettings:
        """Return the settings for Celery's connection, which has its own user in users.acl.

        Celery writes to any list that a message names, so its user (k8s/base/redis/users.acl) has
        no access to csi-fleet's keys.
        """
        component, dot, driver = self.username.partition(".")
        shipped = CELERY_USERS.get(component, component) + dot + driver
        return replace(self, username=self.broker_username or shipped)

    def url_with_credentials(self) -> str:
        """Return the URL with all credentials.

        The result is secret: never log it.
        """
        url = with_sentinel_login(
            self.url, self.sentinel_username, self.sentinel_password, self.sentinel_password_file
        )
        if not self.password and not self.username:
            return url
        scheme, separator, rest = url.partition("://")
        login = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@"
        return scheme + separator + login + rest


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The settings for processes, threads and files."""

    workers: int = 1
    """The number of worker processes that `run` starts, at least 1."""

    concurrency: int = 64
    """The number of threads per worker process, at least 1."""

    lease_ttl_seconds: float = setting("lease-ttl", FLAGS)
    """The time after which the keys of a silent worker are given to other workers, at least 1."""

    state_dir: str = ""
    """The folder for pid, health and metric files; `run` creates it with mode 0700."""

    shadow: bool = setting("shadow", FLAGS)
    """True if nothing is written to the API server and no driver call changes anything."""


@dataclass(frozen=True, slots=True)
class FlowerSettings:
    """The settings of Flower, the web UI for tasks."""

    address: str = setting("flower-address", FLAGS)
    """The listen address; 127.0.0.1 by default."""

    port: int = setting("flower-port", FLAGS)
    """The port; with 0, Flower is not started."""

    basic_auth: tuple[str, ...] = field(default=(), repr=False)
    """The `user:password` entries; empty for no login, which only a loopback address allows."""

    tls: tuple[str, str] = ("", "")
    """The paths of certificate and key; plain HTTP if both are empty."""

    plain_http: bool = setting("flower-plain-http", FLAGS)
    """True if plain HTTP is allowed on an address that other machines can reach."""

    secret_files: tuple[str, ...] = ()
    """The files that contain Flower's passwords and secrets."""

    oidc: OidcSettings | None = None
    """Login through an identity provider, instead of `basic_auth`."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Flower's login through an identity provider."""

    provider: str
    """The provider: `google`, `github`, `gitlab` or `okta`."""

    allowed: str
    """A regular expression that matches the email addresses that may log in."""

    client_id: str
    """The client id at the provider."""

    secret: str = field(repr=False)
    """The client secret at the provider. It is never shown by `repr`."""

    redirect_uri: str
    """Flower's URL with /login, as registered at the provider."""


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """The settings of the server for changed blocks."""

    port: int = setting("port", FLAGS)
    """The port; 0 chooses a free one."""

    certificate: str = setting("tls-cert", FLAGS)
    """The path of the server's certificate."""

    key: str = setting("tls-key", FLAGS)
    """The path of its private key."""

    audience: str = setting("audience", FLAGS)
    """The audience of all tokens; "" for the audience in each driver's SnapshotMetadataService."""

    stream_minutes: int = setting("max-streaming-duration-min", FLAGS)
    """The longest duration of a stream, at least 1."""

    per_driver: int = setting("max-streams-per-driver", FLAGS)
    """The most streams of one driver at the same time, at least 1."""

    per_caller: int = setting("max-streams-per-caller", FLAGS)
    """The most streams of one caller at the same time, at least 1."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process."""

    command: Command = Command.RUN
    """The subcommand."""

    arguments: tuple[str, ...] = ()
    """The arguments that are not flags; only the operators' commands use them."""

    explicit: frozenset[str] = frozenset()
    """The names of the flags that were given as an argument or a variable."""

    warnings: tuple[str, ...] = ()
    """The lines to log once logging is set up."""

    show_version: bool = False
    """True for `--version`; the other settings are then not checked."""

    chosen: tuple[str, ...] = ("provisioner", "capacity")
    """The names of the controllers of this process."""

    controllers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Maps the name of each chosen controller to the settings that its `read_settings` returned."""

    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False, repr=False)
    """The input of `controllers`: the flag values of each controller, keyed by flag name."""

    resync_period_seconds: float = setting("resync-period", FLAGS)
    """The period of the resync, which adds the keys of all objects that need work."""

    gates: FeatureGates = field(default_factory=FeatureGates)
    driver: DriverSettings = field(default_factory=DriverSettings)
    kube: KubeSettings = field(default_factory=KubeSettings)
    provision: ProvisionSettings = field(default_factory=ProvisionSettings)
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    leader: LeaderSettings = field(default_factory=LeaderSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    log: LogSettings = field(default_factory=LogSettings)
    redis: RedisSettings = field(default_factory=RedisSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)
    flower: FlowerSettings = field(default_factory=FlowerSettings)
    blocks: BlockSettings = field(default_factory=BlockSettings)
    tool: ToolSettings = field(default_factory=ToolSettings)

    def __post_init__(self) -> None:
        known = {"provisioner": self.provision, "capacity": self.capacity}
        known = {name: own for name, own in known.items() if name in self.chosen}
        object.__setattr__(self, "controllers", {**self.controllers, **known})
