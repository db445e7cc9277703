"""The flags of every controller: first the flags that all sidecars share, then our own.

Names, defaults and meanings of the first table are upstream's (F- rules, section 2.1). An upstream
flag that csi-fleet does not need is accepted with a warning. A row is all that a new flag needs for
parsing, `--help` and docs/flags.md; docs/architecture.md describes where its field belongs. Flags
of individual controllers are defined next to their settings; `flagsets` joins both.

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
_CLUSTER: Final = _RULES | _TOOLS | {Command.FLOWER}
_SCHEDULE: Final = _RULES | {Command.BEAT}
_ALL: Final = frozenset(Command) - {Command.VERSION, Command.COMPLETION}
_REDIS: Final = _ALL
_FLOWER: Final = frozenset({Command.FLOWER})

_STRING, _BOOL, _INT, _UINT = Kind.STRING, Kind.BOOL, Kind.INT, Kind.UINT
_FLOAT, _DURATION = Kind.FLOAT, Kind.DURATION

_SEVERAL_ACTIVE: Final = "all replicas work at the same time; no lease is needed"
_UNBUFFERED: Final = "log lines are written to stderr one by one, unbuffered"

COMMON_FLAGS: Final = (
    # The driver.
    Flag("csi-address", Kind.STRINGS, "/run/csi/socket", "Address of the CSI driver socket: an "
         "absolute path or unix://. May be repeated to serve several drivers.",
         _RUN_WORKER | _DRIVER_TOOLS),
    # The API server.
    Flag("kubeconfig", _STRING, "", "Client configuration file. The environment variable "
         "KUBECONFIG, when set, overrides it for the sidecars' commands (worker, watcher, csi-...) "
         "as upstream; for the others it is the default.", _CLUSTER),
    Flag("master", _STRING, "", "URL of the API server. Without this and kubeconfig the in-cluster "
         "configuration is used.", _CLUSTER),
    Flag("kube-api-qps", _FLOAT, "50", "Requests per second to the API server, per process; 0 "
         "means client-go's 5, below 0 no limit.", _CLUSTER),
    Flag("kube-api-burst", _INT, "100", "Burst of kube-api-qps; 0 means client-go's 10.", _CLUSTER),
    # Leader election.
    Flag("leader-election", _BOOL, "false", "Keep the Lease of the Go sidecar: while the Go "
         "sidecar holds the Lease, this process stays idle. Workers of one Redis share it and all "
         "work; those of another one wait.",
         _RUN_WORKER),
    Flag("leader-election-namespace", _STRING, "", "Namespace of the Lease; default as for "
         "--namespace.", _RUN_WORKER),
    Flag("leader-election-lease-duration", _DURATION, "15s", "Time after which a silent holder "
         "loses the Lease.", _RUN_WORKER, bound=NOT_NEGATIVE),
    Flag("leader-election-renew-deadline", _DURATION, "10s", "Time in which the holder must renew "
         "it.", _RUN_WORKER, bound=NOT_NEGATIVE),
    Flag("leader-election-retry-period", _DURATION, "5s", "Time between two tries.",
         _RUN_WORKER, bound=NOT_NEGATIVE),
    Flag("leader-election-labels", Kind.LABELS, "", "Labels of the Lease, as key:value,key:value.",
         _RUN_WORKER),
    # HTTP.
    Flag("http-endpoint", _STRING, "", "Listen address for metrics, health and pprof, such as "
         ":8080. Empty: no server.", _RULES),
    Flag("metrics-address", _STRING, "", "Deprecated: http-endpoint without the leader election "
         "health path. Not both.", _RULES),
    Flag("metrics-path", _STRING, "/metrics", "Path of the metrics.", _RULES),
    Flag("enable-pprof", _BOOL, "false", "Serve stacks of all threads and a sampling profile under "
         "/debug/pprof/.", _RULES),
    # The process.
    Flag("feature-gates", Kind.GATES, "", "Comma separated Name=bool; docs/flags.md "
         "lists the gates of each controller.", _RUN_WORKER),
    Flag("automaxprocs", _BOOL, "false", "Take the default of --workers from the CPU quota of the "
         "control group.", _RUN_WORKER),
    Flag("version", _BOOL, "false", "Print the version and exit.", _ALL),
    # Logging.
    Flag("v", _UINT, "0", "Verbosity: 2 main actions, 4 details, 5 all CSI messages with secrets "
         "stripped.", _ALL, shorthand="v"),
    Flag("vmodule", Kind.VMODULE, "", "Verbosity per file.", _ALL,
         ignored="verbosity is the same for all files; use -v"),
    Flag("logging-format", _STRING, "text", "text or json.", _ALL),
    Flag("log-flush-frequency", _DURATION, "5s", "Time between log flushes.", _ALL,
         ignored=_UNBUFFERED, bound=NOT_NEGATIVE),
    Flag("log-text-split-stream", _BOOL, "false", "Errors to stderr, the rest to stdout.", _ALL,
         ignored=_UNBUFFERED),
    Flag("log-text-info-buffer-size", Kind.QUANTITY, "0", "Buffer of the text log.", _ALL,
         ignored=_UNBUFFERED),
    Flag("log-json-split-stream", _BOOL, "false", "Errors to stderr, the rest to stdout.", _ALL,
         ignored=_UNBUFFERED),
    Flag("log-json-info-buffer-size", Kind.QUANTITY, "0", "Buffer of the JSON log.", _ALL,
         ignored=_UNBUFFERED),
)  # fmt: skip

OWN_FLAGS: Final = (
    Flag("controllers", _STRING, "provisioner", "Comma separated controllers to run, or all: "
         "docs/flags.md lists them. What differs between several takes the controller's name in "
         "front, such as --attacher-timeout.", _SCHEDULE | {Command.DOCTOR}, upstream=False,
         env="CSI_FLEET_CONTROLLERS"),
    Flag("redis-url", _STRING, "", "redis://, rediss:// or unix:// URL of Redis, or "
         "sentinel://HOST:PORT,HOST:PORT,.../MASTER for one behind sentinels; TLS files go into "
         "its query (ssl_ca_certs, ssl_certfile, ssl_keyfile). `run` starts its own Redis without "
         "it.", _REDIS, upstream=False, env="CSI_FLEET_REDIS_URL"),
    Flag("redis-username", _STRING, "", "User of Redis.", _REDIS, upstream=False,
         env="CSI_FLEET_REDIS_USERNAME"),
    Flag("redis-broker-username", _STRING, "", "User of Redis for Celery's connection, with the "
         "same password. Without it broker for the user worker, broker.DRIVER for worker.DRIVER, "
         "publisher for watcher, and --redis-username for any other.", _REDIS, upstream=False,
         env="CSI_FLEET_REDIS_BROKER_USERNAME"),
    Flag("redis-password-file", _STRING, "", "File with the password of Redis. The environment "
         "variable CSI_FLEET_REDIS_PASSWORD does the same; no flag takes the password itself.",
         _REDIS, upstream=False, env="CSI_FLEET_REDIS_PASSWORD_FILE"),
    Flag("redis-sentinel-username", _STRING, "", "User for the sentinels of a sentinel:// URL.",
         _REDIS, upstream=False, env="CSI_FLEET_REDIS_SENTINEL_USERNAME"),
    Flag("redis-sentinel-password-file", _STRING, "", "File with the password of the sentinels; "
         "the variable CSI_FLEET_REDIS_SENTINEL_PASSWORD does the same.",
         _REDIS, upstream=False, env="CSI_FLEET_REDIS_SENTINEL_PASSWORD_FILE"),
    Flag("redis-insecure", _BOOL, "false", "Let a password go to a Redis on another host without "
         "TLS: for networks that nobody else can read.", _REDIS, upstream=False,
         env="CSI_FLEET_REDIS_INSECURE"),
    Flag("records-key-file", _STRING, "", "File with the keys, one per line, that workers sign "
         "their records in Redis with: the first signs, each of them proves, the line `unsigned` "
         "lets records without a signature count too. The variable CSI_FLEET_RECORDS_KEY does the "
         "same. Without it whoever writes to Redis can have volumes made; `run` with its own "
         "Redis needs none: nobody else reaches that.",
         _RUN_WORKER, upstream=False, env="CSI_FLEET_RECORDS_KEY_FILE"),
    Flag("drivers-file", _STRING, "", "YAML file with the drivers to serve (central mode), or a "
         "folder of such files (*.yaml); reloaded when they change. Replaces the default of "
         "--csi-address.",
         _RUN_WORKER | _DRIVER_TOOLS, upstream=False),
    Flag("drivers-pool", _STRING, "", "Serve only the drivers of --drivers-file with this `pool`; "
         "empty serves those without one.", _RUN_WORKER, upstream=False),
    Flag("provisioner", Kind.STRINGS, "", "Provisioner of your own to serve: MODULE:CLASS or an "
         "entry point of group csi_fleet.provisioners (docs/custom-provisioners.md). May be "
         "repeated. Replaces the default of --csi-address.", _RUN_WORKER, upstream=False),
    Flag("namespace", _STRING, "", "Namespace of the system's own objects. Default: POD_NAMESPACE, "
         "else the service account's, else `default`.", _CLUSTER - {Command.PENDING},
         upstream=False),
    Flag("workers", _UINT, "0", "Worker processes that `run` starts; 0 means one per driver, or "
         "with --drivers-file or --automaxprocs 8, but never more than CPUs of the quota.",
         frozenset({Command.RUN}), upstream=False),
    Flag("concurrency", _UINT, "0", "Threads per worker process; 0 means twice --worker-threads, "
         "at most 64.", _RUN_WORKER, upstream=False),
    Flag("lease-ttl", _DURATION, "4s", "Time after which the work of a silent worker process is "
         "given to others.", _RUN_WORKER | {Command.BEAT}, upstream=False, bound=at_least(1, "1s")),
    Flag("resync-period", _DURATION, "15m", "Period in which every unfinished claim and volume is "
         "looked at again.", RESYNC_COMMANDS, upstream=False, bound=POSITIVE),
    Flag("shadow", _BOOL, "false", "Decide and write nothing: neither the API server nor a driver "
         "is changed. What would have been done is compared with what the sidecar beside it does: "
         "docs/shadow.md.", _RUN_WORKER, upstream=False),
    Flag("state-dir", _STRING, "", "Folder for pid, health and metric files and the socket and log "
         "of the embedded Redis, which keeps no data on disk. Default: csi-fleet-<uid> in the "
         "temporary folder.",
         _ALL, upstream=False, env="CSI_FLEET_STATE_DIR"),
    Flag("metrics-token-review", _BOOL, "false", "Show the metrics only to bearers of a token "
         "whose owner may get that path, by TokenReview (k8s/components/metrics-auth).", _RULES,
         upstream=False),
    Flag("flower-address", _STRING, "127.0.0.1", "Listen address of Flower.", _FLOWER,
         upstream=False),
    Flag("flower-port", _UINT, "5555", "Port of Flower.", _FLOWER,
         upstream=False, bound=Bound(lambda port: 0 < port <= 65535, "be 1 to 65535")),
    Flag("flower-tls-cert-file", _STRING, "", "Certificate with which Flower serves HTTPS.",
         _FLOWER, upstream=False),
    Flag("flower-tls-key-file", _STRING, "", "Its key.", _FLOWER, upstream=False),
    Flag("flower-plain-http", _BOOL, "false", "Serve plain HTTP also at an address open to others: "
         "something before Flower encrypts.", _FLOWER, upstream=False),
    Flag("flower-oidc-provider", _STRING, "", "Log in to Flower by google, github, gitlab or okta "
         "in place of a password (FLOWER_... variables of Flower name further details).", _FLOWER,
         upstream=False),
    Flag("flower-oidc-allowed", _STRING, "", "Regular expression of the addresses that may enter.",
         _FLOWER, upstream=False),
    Flag("flower-oidc-client-id", _STRING, "", "Flower's id at the provider.", _FLOWER,
         upstream=False),
    Flag("flower-oidc-secret-file", _STRING, "", "File with Flower's secret at the provider.",
         _FLOWER, upstream=False),
    Flag("flower-oidc-redirect-uri", _STRING, "", "Flower's own address with /login, as the "
         "provider knows it.", _FLOWER, upstream=False),
    Flag("flower-basic-auth-file", _STRING, "", "File with user:password lines for Flower. The "
         "environment variable CSI_FLEET_FLOWER_BASIC_AUTH (comma separated) does the same.",
         _FLOWER, upstream=False),
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
    "connection-timeout": "removed upstream; the connection is retried for ever",
    "leader-election-type": f"removed upstream; {_SEVERAL_ACTIVE}",
}
"""Flags of older releases with a value -> why they are ignored."""
