"""What are the settings of a process? Frozen values only; `workers.config.load` builds them.

Durations are seconds. Defaults are those of the flags' rows, so a test can write `Settings()` or
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
    """Which drivers a worker serves, and how it calls them."""

    csi_addresses: tuple[str, ...] = setting("csi-address", FLAGS)
    """Sockets of the drivers beside this process; empty in central mode."""

    provisioners: tuple[str, ...] = setting("provisioner", FLAGS)
    """Plug-ins to serve, each `module:class` or the name of an entry point."""

    drivers_file: str = setting("drivers-file", FLAGS)
    """Path of the YAML file of central mode; "" for none."""

    drivers_pool: str = setting("drivers-pool", FLAGS)
    """Pool of the file's drivers that this worker serves; "": those without a pool."""

    timeout_seconds: float = taken("timeout", default=10.0)
    """Deadline of each CSI call, above 0."""


@dataclass(frozen=True, slots=True)
class KubeSettings:
    """How to reach the API server."""

    kubeconfig: str = ""
    """Path of the client configuration; from KUBECONFIG or the flag; "" means in-cluster."""

    master: str = setting("master", FLAGS)
    """URL of the API server; "" takes it from the kubeconfig or the cluster."""

    qps: float = setting("kube-api-qps", FLAGS)
    """Requests per second of one process; 0 means client-go's default 5, below 0 no limit."""

    burst: int = setting("kube-api-burst", FLAGS)
    """Requests that may go out at once before `qps` holds; 0 means client-go's default 10."""

    capacity_qps: float = taken("kube-api-capacity-qps", default=1.0)
    """Writes of capacity objects per second and driver, over all processes."""

    capacity_burst: int = taken("kube-api-capacity-burst", default=5)
    """Burst of `capacity_qps`."""

    namespace: str = "default"
    """Namespace of the system's own objects (intents); POD_NAMESPACE or the service account's."""

    def rate(self) -> tuple[float, int]:
        """Requests per second and burst for a client; 0 per second is no limit there."""
        return max(0.0, self.qps or 5.0), self.burst or 10


@dataclass(frozen=True, slots=True)
class ProvisionSettings:
    """The rules of creating and deleting volumes."""

    volume_name_prefix: str = taken("volume-name-prefix", default="pvc")
    """First part of volume names. Empty is an error of each claim (P-121)."""

    volume_name_uuid_length: int = taken("volume-name-uuid-length", default=-1)
    """Characters kept of the dash-less UID, 1 to 32; -1 (default) keeps the UID as it is."""

    default_fstype: str = taken("default-fstype", default="")
    """File system when the class names none; default "" leaves it to the driver."""

    extra_create_metadata: bool = taken("extra-create-metadata", default=False)
    """Whether CreateVolume gets the names of claim and volume."""

    controller_publish_readonly: bool = taken("controller-publish-readonly", default=False)
    """Whether a PV for ReadOnlyMany alone is read-only."""

    prevent_volume_mode_conversion: bool = taken("prevent-volume-mode-conversion", default=True)
    """Whether a restore may not change the volume mode."""

    strict_topology: bool = taken("strict-topology", default=False)
    """Late binding: only the selected node's topology."""

    immediate_topology: bool = taken("immediate-topology", default=True)
    """Immediate binding: all topologies of the cluster."""

    retry_interval_start_seconds: float = taken("retry-interval-start", default=1.0)
    """First retry interval, above 0."""

    retry_interval_max_seconds: float = taken("retry-interval-max", default=300.0)
    """Longest retry interval, above 0."""

    worker_threads: int = taken("worker-threads", default=100)
    """Simultaneous creations, and apart from them deletions, per driver; at least 1."""

    cloning_protection_threads: int = taken("cloning-protection-threads", default=1)
    """Simultaneous removals of the clone source finalizer; 0 removes none."""

    snapshot_orphan_sweep_seconds: float = taken("snapshot-orphan-sweep-interval", default=300.0)
    """Period of the snapshot finalizer sweep; 0 disables."""


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """CSIStorageCapacity objects."""

    enabled: bool = taken("enable-capacity", default=False)
    """Whether to publish capacity."""

    for_immediate_binding: bool = taken("capacity-for-immediate-binding", default=False)
    """Whether classes with immediate binding get objects too."""

    poll_interval_seconds: float = taken("capacity-poll-interval", default=60.0)
    """Period of the full refresh, above 0."""

    ownerref_level: int = taken("capacity-ownerref-level", default=1)
    """Steps from the pod to the owner of the objects; -1 for no owner."""

    threads: int = taken("capacity-threads", default=1)
    """Simultaneous GetCapacity calls per driver; 0 makes none."""

    always_topology: bool = taken("capacity-always-topology", default=False)
    """Whether GetCapacity carries a topology whatever the driver supports."""

    namespace: str = ""
    """Variable NAMESPACE: where the objects live; set when `enabled`."""

    pod_name: str = ""
    """Variable POD_NAME: start of the owner look-up; set when needed."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One provisioner per node (section 5)."""

    enabled: bool = False
    """Whether only this node's claims are ours."""

    node_name: str = ""
    """Variable NODE_NAME; set when `enabled`."""

    immediate_binding: bool = taken("node-deployment-immediate-binding", default=True)
    """Whether claims with immediate binding are taken."""

    base_delay_seconds: float = taken("node-deployment-base-delay", default=20.0)
    """First wait before owning such a claim, above 0."""

    max_delay_seconds: float = taken("node-deployment-max-delay", default=60.0)
    """Longest such wait."""


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The Lease; work never depends on it."""

    enabled: bool = False
    """Whether to keep a Lease; always off in node deployment."""

    namespace: str = "default"
    """Namespace of the Lease."""

    lease_duration_seconds: float = setting("leader-election-lease-duration", FLAGS)
    """Time after which a silent holder loses the Lease."""

    renew_deadline_seconds: float = setting("leader-election-renew-deadline", FLAGS)
    """Time in which the holder must renew; below the duration."""

    retry_period_seconds: float = setting("leader-election-retry-period", FLAGS)
    """Time between two tries."""

    labels: tuple[tuple[str, str], ...] = ()
    """Labels of the Lease as sorted pairs; `dict(labels)` for a manifest."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The server for metrics, health and profiles."""

    endpoint: str = ""
    """Listen address such as `:8080`; "" for no server."""

    metrics_path: str = setting("metrics-path", FLAGS)
    """Path of the metrics."""

    token_review: bool = setting("metrics-token-review", FLAGS)
    """Whether only those may read the metrics whom the API server lets."""

    pprof: bool = setting("enable-pprof", FLAGS)
    """Whether /debug/pprof/ is served."""

    leader_health: bool = False
    """Whether /healthz/leader-election exists: leader election and --http-endpoint (F-022)."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Log lines."""

    verbosity: int = setting("v", FLAGS)
    """0 to about 10, klog's levels."""

    format: str = setting("logging-format", FLAGS)
    """`text` (klog's layout) or `json`."""


CELERY_USERS: Final = {"watcher": "publisher", "worker": "broker"}


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """How to reach Redis. Credentials are apart from the URL, so that it may be logged."""

    url: str = ""
    """URL without user and password; "" means: start one (only `run`)."""

    username: str = ""
    """User name; "" for Redis' default user."""

    password: str = field(default="", repr=False)
    """Password; "" for none. Never shown by `repr`."""

    broker_username: str = setting("redis-broker-username", FLAGS)
    """User of Celery's connection, with the same password; "" for the one of `for_celery`."""

    password_file: str = ""
    """Where `password` came from; each new connection reads it again. "" for elsewhere."""

    sentinel_username: str = ""
    """User name for the sentinels; "" for their default user."""

    sentinel_password: str = field(default="", repr=False)
    """Password of the sentinels; "" for none. Never shown by `repr`."""

    sentinel_password_file: str = ""
    """Where `sentinel_password` came from, as `password_file`."""

    record_keys: tuple[str, ...] = field(default=(), repr=False)
    """Lines of the key file: what workers sign their records with; () for unsigned ones."""

    is_insecure: bool = setting("redis-insecure", FLAGS)
    """A password may go over a connection without TLS."""

    def for_celery(self) -> RedisSettings:
        """The same Redis for Celery's connection, with the user that k8s/base/redis/users.acl has.

        Celery writes where a message tells it to, so its user reaches no key of csi-fleet.
        """
        component, dot, driver = self.username.partition(".")
        shipped = CELERY_USERS.get(component, component) + dot + driver
        return replace(self, username=self.broker_username or shipped)

    def url_with_credentials(self) -> str:
        """The URL with all that is needed to connect, in one text.

        Secret: never log it.
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
    """Processes, threads and files."""

    workers: int = 1
    """Worker processes started by `run`, at least 1."""

    concurrency: int = 64
    """Threads per worker process, at least 1."""

    lease_ttl_seconds: float = setting("lease-ttl", FLAGS)
    """Time after which a silent worker's keys are handed over, at least 1."""

    state_dir: str = ""
    """Folder for pid, health and metric files; made by `run`, mode 0700."""

    shadow: bool = setting("shadow", FLAGS)
    """Whether nothing is written to the API server or asked of a driver."""


@dataclass(frozen=True, slots=True)
class FlowerSettings:
    """The web page of tasks."""

    address: str = setting("flower-address", FLAGS)
    """Listen address; default 127.0.0.1."""

    port: int = setting("flower-port", FLAGS)
    """Port; 0 does not start it."""

    basic_auth: tuple[str, ...] = field(default=(), repr=False)
    """`user:password` entries; empty means no login, which needs a loopback address."""

    tls: tuple[str, str] = ("", "")
    """Paths of certificate and key; two empty ones mean plain HTTP."""

    plain_http: bool = setting("flower-plain-http", FLAGS)
    """Whether plain HTTP at an address open to others is wanted."""

    secret_files: tuple[str, ...] = ()
    """Where its logins and secrets came from."""

    oidc: OidcSettings | None = None
    """Login by an identity provider, in place of `basic_auth`."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Flower's login by an identity provider."""

    provider: str
    """`google`, `github`, `gitlab` or `okta`."""

    allowed: str
    """Regular expression of the addresses that may come in."""

    client_id: str
    """Our name at the provider."""

    secret: str = field(repr=False)
    """Our secret there. Never shown by `repr`."""

    redirect_uri: str
    """Flower's own address with /login, as the provider knows it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything one process was told."""

    command: Command = Command.RUN
    """The subcommand."""

    arguments: tuple[str, ...] = ()
    """What follows the flags; only the tools use it."""

    explicit: frozenset[str] = frozenset()
    """Names of the flags given by argument or variable, not by default."""

    warnings: tuple[str, ...] = ()
    """One line each, to be logged once logging works."""

    show_version: bool = False
    """Whether only the version is wanted; nothing else is checked then."""

    chosen: tuple[str, ...] = ("provisioner", "capacity")
    """The controllers of this process, by name."""

    controllers: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Each chosen controller's own settings by its name, made by its `read_settings`."""

    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False, repr=False)
    """What `controllers` was read from: flag values by name, by controller."""

    resync_period_seconds: float = setting("resync-period", FLAGS)
    """Period in which everything unfinished is looked at again."""

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
    tool: ToolSettings = field(default_factory=ToolSettings)

    def __post_init__(self) -> None:
        known = {"provisioner": self.provision, "capacity": self.capacity}
        known = {name: own for name, own in known.items() if name in self.chosen}
        object.__setattr__(self, "controllers", {**self.controllers, **known})
