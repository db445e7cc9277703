"""The flags of every controller: first the flags that all sidecars share, then our own.

Names, defaults and meanings of the first table are upstream's (F- rules, section 2.1). An upstream
flag that csi-fleet does not need is accepted with a warning. A row is all that a new flag needs for
parsing, `--help` and docs/flags.md; docs/architecture.md describes where its field belongs. Flags
of individual controllers are defined alongside their settings; `flagsets` combines them with this
table.

Source: csi-lib-utils standardflags, component-base logs/api/v1.
"""

from __future__ import annotations

from typing import Final

from workers.config.flags import (
    NOT_NEGATIVE,
    POSITIVE,
    RESYNC_COMMANDS,
    TOOLS,
    Bound,
    Command,
    Flag,
    Kind,
    at_least,
)
from workers.config.toolflags import TOOL_FLAGS

_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_RULES: Final = _RUN_WORKER | {Command.WATCHER}
_DRIVER_TOOLS: Final = frozenset({Command.AUDIT, Command.DOCTOR})
_TOOLS: Final = TOOLS - {Command.COMPLETION}
_CLUSTER: Final = _RULES | _TOOLS | {Command.FLOWER, Command.SNAPSHOT_METADATA}
_SCHEDULE: Final = _RULES | {Command.BEAT}
_ALL: Final = frozenset(Command) - {Command.VERSION, Command.COMPLETION}
_REDIS: Final = _ALL - {Command.CONFORMANCE, Command.SNAPSHOT_METADATA}
_FLOWER: Final = frozenset({Command.FLOWER})
_BLOCKS: Final = frozenset({Command.SNAPSHOT_METADATA})

_STRING, _BOOL, _INT, _UINT = Kind.STRING, Kind.BOOL, Kind.INT, Kind.UINT
_FLOAT, _DURATION = Kind.FLOAT, Kind.DURATION

_SEVERAL_ACTIVE: Final = "all replicas work at the same time; no lease is needed"
_UNBUFFERED: Final = "log lines are written to stderr without a buffer"

COMMON_FLAGS: Final = (
    # The driver.
    Flag("csi-address", Kind.STRINGS, "/run/csi/socket", "Address of the CSI driver socket: an "
         "absolute path or unix://. May be repeated to serve several drivers.",
         _RUN_WORKER | _DRIVER_TOOLS | _BLOCKS),
    # The API server.
    Flag("kubeconfig", _STRING, "", "Client configuration file. The environment variable "
         "KUBECONFIG, if set, overrides this flag for the sidecars' commands (worker, watcher, "
         "csi-...), as in the upstream sidecars; for other commands it is the default.", _CLUSTER),
    Flag("master", _STRING, "", "URL of the API server. If neither this flag nor --kubeconfig is "
         "set, the in-cluster configuration is used.", _CLUSTER),
    Flag("kube-api-qps", _FLOAT, "50", "Requests per second to the API server, per process; 0 "
         "means client-go's default of 5, a negative value means no limit.", _CLUSTER),
    Flag("kube-api-burst", _INT, "100", "How many requests may be sent in a burst above "
         "--kube-api-qps; 0 means client-go's default of 10.", _CLUSTER),
    # Leader election.
    Flag("leader-election", _BOOL, "false", "Use the Lease of the Go sidecar: while the Go sidecar "
         "holds it, this process stays idle. All workers that use the same Redis share the Lease "
         "and work at the same time; workers of another Redis wait.",
         _RUN_WORKER),
    Flag("leader-election-namespace", _STRING, "", "Namespace of the Lease. It has the same "
         "default as --namespace.", _RUN_WORKER),
    Flag("leader-election-lease-duration", _DURATION, "15s", "Time after which a holder that does "
         "not renew the Lease loses it.", _RUN_WORKER, bound=NOT_NEGATIVE),
    Flag("leader-election-renew-deadline", _DURATION, "10s", "Time within which the holder must "
         "renew the Lease.", _RUN_WORKER, bound=NOT_NEGATIVE),
    Flag("leader-election-retry-period", _DURATION, "5s", "Time between two attempts to acquire or "
         "renew the Lease.",
         _RUN_WORKER, bound=NOT_NEGATIVE),
    Flag("leader-election-labels", Kind.LABELS, "", "Labels for the Lease, as key:value,key:value.",
         _RUN_WORKER),
    # HTTP.
    Flag("http-endpoint", _STRING, "", "Listen address for metrics, health and pprof, such as "
         ":8080. If empty, no HTTP server is started.", _RULES | _BLOCKS),
    Flag("metrics-address", _STRING, "", "Deprecated: use --http-endpoint instead. Like "
         "--http-endpoint, but without the health path for leader election; only one of the two "
         "may be set.", _RULES | _BLOCKS),
    Flag("metrics-path", _STRING, "/metrics", "HTTP path of the metrics.",
         _RULES | _BLOCKS),
    Flag("enable-pprof", _BOOL, "false", "Serve the stacks of all threads and a sampling profile "
         "under /debug/pprof/.", _RULES | _BLOCKS),
    # The process.
    Flag("feature-gates", Kind.GATES, "", "Comma-separated Name=bool pairs; docs/flags.md lists "
         "the gates of each controller.", _RUN_WORKER),
    Flag("automaxprocs", _BOOL, "false", "Use the CPU quota of the control group as the default of "
         "--workers.", _RUN_WORKER),
    Flag("version", _BOOL, "false", "Print the version and exit.", _ALL),
    # Logging.
    Flag("v", _UINT, "0", "Log verbosity: 2 logs the main actions, 4 details, 5 all CSI messages "
         "with secrets stripped.", _ALL, shorthand="v"),
    Flag("vmodule", Kind.VMODULE, "", "Log verbosity per file.", _ALL,
         ignored="verbosity is the same for all files; use -v"),
    Flag("logging-format", _STRING, "text", "Log format: text or json.", _ALL),
    Flag("log-flush-frequency", _DURATION, "5s", "Time between log flushes.", _ALL,
         ignored=_UNBUFFERED, bound=NOT_NEGATIVE),
    Flag("log-text-split-stream", _BOOL, "false", "Write errors to stderr and all other log lines "
         "to stdout.", _ALL,
         ignored=_UNBUFFERED),
    Flag("log-text-info-buffer-size", Kind.QUANTITY, "0", "Size of the buffer for the text log.",
         _ALL,
         ignored=_UNBUFFERED),
    Flag("log-json-split-stream", _BOOL, "false", "Write errors to stderr and all other log lines "
         "to stdout.", _ALL,
         ignored=_UNBUFFERED),
    Flag("log-json-info-buffer-size", Kind.QUANTITY, "0", "Size of the buffer for the JSON log.",
         _ALL,
         ignored=_UNBUFFERED),
)  # fmt: skip

OWN_FLAGS: Final = (
    Flag("controllers", _STRING, "provisioner", "Comma-separated names of the controllers to run, "
         "or `all`; docs/flags.md lists them. If several controllers run, a flag that differs "
         "between them takes the controller's name as a prefix, such as --attacher-timeout.",
         _SCHEDULE | {Command.DOCTOR}, upstream=False,
         env="CSI_FLEET_CONTROLLERS"),
    Flag("redis-url", _STRING, "", "redis://, rediss:// or unix:// URL of Redis, or "
         "sentinel://HOST:PORT,HOST:PORT,.../MASTER for a Redis behind sentinels. Give TLS files "
         "in the query of the URL (ssl_ca_certs, ssl_certfile, ssl_keyfile). Without this flag, "
         "`run` starts its own Redis.", _REDIS, upstream=False, env="CSI_FLEET_REDIS_URL"),
    Flag("redis-username", _STRING, "", "Redis user name.", _REDIS, upstream=False,
         env="CSI_FLEET_REDIS_USERNAME"),
    Flag("redis-broker-username", _STRING, "", "Redis user name for Celery's connection; the "
         "password is that of --redis-username. Default: `broker` for the user `worker`, "
         "`broker.DRIVER` for `worker.DRIVER`, `publisher` for `watcher`, and --redis-username for "
         "any other user.",
         _REDIS, upstream=False,
         env="CSI_FLEET_REDIS_BROKER_USERNAME"),
    Flag("redis-password-file", _STRING, "", "File with the Redis password. Alternatively, set the "
         "environment variable CSI_FLEET_REDIS_PASSWORD; no flag takes the password itself.",
         _REDIS, upstream=False, env="CSI_FLEET_REDIS_PASSWORD_FILE"),
    Flag("redis-sentinel-username", _STRING, "", "User name for the sentinels of a "
         "sentinel:// URL.",
         _REDIS, upstream=False, env="CSI_FLEET_REDIS_SENTINEL_USERNAME"),
    Flag("redis-sentinel-password-file", _STRING, "", "File with the password for the sentinels. "
         "Alternatively, set the environment variable CSI_FLEET_REDIS_SENTINEL_PASSWORD.",
         _REDIS, upstream=False, env="CSI_FLEET_REDIS_SENTINEL_PASSWORD_FILE"),
    Flag("redis-insecure", _BOOL, "false", "Allow the password to be sent without TLS to a Redis "
         "on another host. Use it only if nobody else can read the network traffic.",
         _REDIS, upstream=False,
         env="CSI_FLEET_REDIS_INSECURE"),
    Flag("records-key-file", _STRING, "", "File with the keys, one per line, that workers use to "
         "sign their records in Redis. The first key signs; a signature by any of the keys is "
         "valid; the line `unsigned` makes records without a signature valid too. Alternatively, "
         "set the environment variable CSI_FLEET_RECORDS_KEY. Without a key, anybody who can write "
         "to Redis can have volumes created. `run` with its own Redis needs no key, because nobody "
         "else can reach that Redis.",
         _RUN_WORKER, upstream=False, env="CSI_FLEET_RECORDS_KEY_FILE"),
    Flag("drivers-file", _STRING, "", "YAML file with the drivers to serve (central mode), or a "
         "folder of such files (*.yaml); reloaded when they change. If set, the default of "
         "--csi-address is not used.",
         _RUN_WORKER | _DRIVER_TOOLS | _BLOCKS, upstream=False),
    Flag("drivers-pool", _STRING, "", "Serve only the drivers of --drivers-file that have this "
         "`pool`; if empty, serve the drivers that have no `pool`.", _RUN_WORKER, upstream=False),
    Flag("provisioner", Kind.STRINGS, "", "Custom provisioner to run: MODULE:CLASS or an entry "
         "point in the group csi_fleet.provisioners (docs/custom-provisioners.md). May be "
         "repeated. If set, the default of --csi-address is not used.",
         _RUN_WORKER, upstream=False),
    Flag("namespace", _STRING, "", "Namespace of csi-fleet's own objects. Default: the value of "
         "POD_NAMESPACE, else the service account's namespace, else `default`.",
         _CLUSTER - {Command.PENDING},
         upstream=False),
    Flag("workers", _UINT, "0", "Number of worker processes that `run` starts. 0 means one per "
         "driver, or 8 with --drivers-file or --automaxprocs, but never more than the CPU quota "
         "allows.",
         frozenset({Command.RUN}), upstream=False),
    Flag("concurrency", _UINT, "0", "Number of threads per worker process; 0 means twice "
         "--worker-threads, but at most 64.", _RUN_WORKER, upstream=False),
    Flag("lease-ttl", _DURATION, "4s", "Time after which the work of a worker process that sends "
         "no heartbeat is given to other workers.",
         _RUN_WORKER | {Command.BEAT}, upstream=False, bound=at_least(1, "1s")),
    Flag("resync-period", _DURATION, "15m", "How often every unfinished claim and volume is "
         "rechecked.", RESYNC_COMMANDS, upstream=False, bound=POSITIVE),
    Flag("shadow", _BOOL, "false", "Make decisions, but change nothing in the API server or in a "
         "driver. The decisions are compared with what the Go sidecar beside this process does; "
         "see docs/shadow.md.", _RUN_WORKER, upstream=False),
    Flag("state-dir", _STRING, "", "Folder for pid, health and metric files, and for the socket "
         "and the log of the embedded Redis, which stores no data on disk. Default: "
         "csi-fleet-<uid> in the temporary folder.",
         _ALL, upstream=False, env="CSI_FLEET_STATE_DIR"),
    Flag("metrics-token-review", _BOOL, "false", "Serve the metrics only to clients whose bearer "
         "token allows them to get that path. The token is checked by a TokenReview "
         "(k8s/components/metrics-auth).", _RULES | _BLOCKS,
         upstream=False),
    Flag("flower-address", _STRING, "127.0.0.1", "Listen address of Flower.", _FLOWER,
         upstream=False),
    Flag("flower-port", _UINT, "5555", "Port of Flower.", _FLOWER,
         upstream=False, bound=Bound(lambda port: 0 < port <= 65535, "be 1 to 65535")),
    Flag("flower-tls-cert-file", _STRING, "", "File with Flower's TLS certificate, for HTTPS.",
         _FLOWER, upstream=False),
    Flag("flower-tls-key-file", _STRING, "", "File with the private key of --flower-tls-cert-file.",
         _FLOWER, upstream=False),
    Flag("flower-plain-http", _BOOL, "false", "Serve plain HTTP even if --flower-address can be "
         "reached from other hosts. Use it if a proxy in front of Flower encrypts the traffic.",
         _FLOWER, upstream=False),
    Flag("flower-oidc-provider", _STRING, "", "Identity provider that users log in to Flower "
         "with, in place of a password: google, github, gitlab or okta. Flower's own FLOWER_... "
         "environment variables set further details.", _FLOWER, upstream=False),
    Flag("flower-oidc-allowed", _STRING, "", "Regular expression that matches the e-mail addresses "
         "allowed to log in to Flower.",
         _FLOWER, upstream=False),
    Flag("flower-oidc-client-id", _STRING, "", "Flower's client id at the login provider.", _FLOWER,
         upstream=False),
    Flag("flower-oidc-secret-file", _STRING, "", "File with Flower's client secret at the login "
         "provider.",
         _FLOWER, upstream=False),
    Flag("flower-oidc-redirect-uri", _STRING, "", "Flower's URL that ends in /login, as registered "
         "at the login provider.", _FLOWER, upstream=False),
    Flag("flower-basic-auth-file", _STRING, "", "File with user:password lines for Flower. "
         "Alternatively, set the environment variable CSI_FLEET_FLOWER_BASIC_AUTH to a "
         "comma-separated list.",
         _FLOWER, upstream=False),
    Flag("port", _UINT, "50051", "Port on which `snapshot-metadata` serves backup programs.",
         _BLOCKS, upstream=False, bound=Bound(lambda port: port <= 65535, "be 0 to 65535")),
    Flag("tls-cert", _STRING, "", "File with the server's certificate. It is read again for each "
         "connection, so a renewed certificate needs no restart.", _BLOCKS, upstream=False,
         env="TLS_CERT_PATH"),
    Flag("tls-key", _STRING, "", "File with the private key of --tls-cert.", _BLOCKS,
         upstream=False, env="TLS_KEY_PATH"),
    Flag("audience", _STRING, "", "Audience that callers' tokens must have. Default: the audience "
         "in the driver's SnapshotMetadataService object.", _BLOCKS, upstream=False),
    Flag("max-streaming-duration-min", _UINT, "10", "The longest time that a stream may take, in "
         "minutes.", _BLOCKS, upstream=False, bound=at_least(1)),
    Flag("max-streams-per-driver", _UINT, "100", "How many streams of one driver may run at the "
         "same time.", _BLOCKS, upstream=False, bound=at_least(1)),
    Flag("max-streams-per-caller", _UINT, "50", "How many streams one caller (the user of its "
         "token) may run at the same time.", _BLOCKS, upstream=False, bound=at_least(1)),
    *TOOL_FLAGS,
)  # fmt: skip

FLAGS: Final = {flag.name: flag for flag in (*COMMON_FLAGS, *OWN_FLAGS)}

OTHER_MEANING: Final = frozenset({"workers"})
"""Our flags whose names mean something else in a sidecar (`--workers` in csi-resizer)."""

_KLOG: Final = "klog's own flags were removed upstream; logs always go to stderr"

REMOVED_BOOLS: Final = {
    "add-dir-header": _KLOG,
    "alsologtostderr": _KLOG,
    "legacy-stderr-threshold-behavior": _KLOG,
    "logtostderr": _KLOG,
    "one-output": _KLOG,
    "skip-headers": _KLOG,
    "skip-log-headers": _KLOG,
    "enable-leader-election": f"removed upstream; {_SEVERAL_ACTIVE}",
}
"""Flags of older releases without a value -> why they are ignored (F-001)."""

REMOVED_VALUES: Final = {
    "log-backtrace-at": _KLOG,
    "log-dir": _KLOG,
    "log-file": _KLOG,
    "log-file-max-size": _KLOG,
    "stderrthreshold": _KLOG,
    "connection-timeout": "removed upstream; the connection is retried indefinitely",
    "leader-election-type": f"removed upstream; {_SEVERAL_ACTIVE}",
}
"""Flags of older releases with a value -> why they are ignored."""
