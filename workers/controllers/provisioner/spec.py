"""Describes csi-provisioner as data: its kinds of keys, flags and permissions.

The flags, defaults and gates are those of external-provisioner v6.3 (F- rules, section 2.1).
"""

from __future__ import annotations

from typing import Final

from workers.config.flags import NOT_NEGATIVE, POSITIVE, Bound, Command, Flag, at_least
from workers.config.flags import Kind as Value
from workers.config.gates import PROVISIONER_GATES
from workers.controllers.provisioner.rules import WATCHES, ProvisionerRules
from workers.controllers.provisioner.settings import read_settings
from workers.engine.leasename import lease_name
from workers.kube import paths
from workers.queue import keys
from workers.spec import Kind, Permission, Spec

_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_SCHEDULE: Final = _RUN_WORKER | {Command.BEAT}
_DRIVER_TOOLS: Final = frozenset({Command.AUDIT, Command.DOCTOR, Command.CONFORMANCE})
_STRING, _BOOL, _INT, _UINT = Value.STRING, Value.BOOL, Value.INT, Value.UINT
_DURATION: Final = Value.DURATION

MOST_KEYS: Final = 16
FEW_KEYS: Final = Bound(lambda keys: len(keys) <= MOST_KEYS, f"have at most {MOST_KEYS} keys")
# The scheduler reads these labels of a PV: a tenant must not choose them.
_ZONE_LABELS: Final = frozenset(
    f"{domain}/{place}"
    for domain in ("topology.kubernetes.io", "failure-domain.beta.kubernetes.io")
    for place in ("zone", "region")
)
LABELS_OF_VOLUMES: Final = Bound(
    lambda keys: len(keys) <= MOST_KEYS and not _ZONE_LABELS.intersection(keys),
    f"have at most {MOST_KEYS} keys, and no zone or region, which the scheduler reads",
)
UID_LENGTH: Final = Bound(lambda n: n == -1 or 1 <= n <= 32, "be -1 or 1 to 32")

FLAGS: Final = (
    Flag("timeout", _DURATION, "10s", "Deadline for each CSI call (creation, deletion, capacity, "
         "and the identity calls at start).",
         _RUN_WORKER | _DRIVER_TOOLS, bound=POSITIVE, per_driver=True),
    # Volumes.
    Flag("volume-name-prefix", _STRING, "pvc", "Prefix of the names of volumes and PVs. The name "
         "is this prefix, a dash and the UID of the claim.", per_driver=True),
    Flag("volume-name-uuid-length", _INT, "-1", "Number of characters (1 to 32) of the claim's "
         "UID, without dashes, to use in the volume name; -1 means the whole UID with its dashes.",
         bound=UID_LENGTH, per_driver=True),
    Flag("default-fstype", _STRING, "", "File system type for volumes whose storage class does not "
         "specify one. If empty, the driver chooses.", _RUN_WORKER, per_driver=True),
    Flag("extra-create-metadata", _BOOL, "false", "Add the names of the claim and of the PV to the "
         "parameters of CreateVolume.", _RUN_WORKER, per_driver=True),
    Flag("claim-labels-to-pv", Value.KEYS, "", "Comma-separated keys of the claim labels that are "
         "also put on the claims' PVs and kept up to date there.", _RUN_WORKER, upstream=False,
         bound=LABELS_OF_VOLUMES, per_driver=True),
    Flag("claim-labels-to-driver", Value.KEYS, "", "Comma-separated keys of the claim labels to "
         "add to the parameters of CreateVolume.", _RUN_WORKER, upstream=False, bound=FEW_KEYS,
         per_driver=True),
    Flag("claim-annotations-to-driver", Value.KEYS, "", "Comma-separated keys of the "
         "claim annotations to add to the parameters of CreateVolume.", _RUN_WORKER,
         upstream=False, bound=FEW_KEYS, per_driver=True),
    Flag("controller-publish-readonly", _BOOL, "false", "Mark a PV as read-only if its only access "
         "mode is ReadOnlyMany.", _RUN_WORKER, per_driver=True),
    Flag("prevent-volume-mode-conversion", _BOOL, "true", "Reject a claim that restores a snapshot "
         "with a different volume mode, unless the VolumeSnapshotContent allows it.", _RUN_WORKER,
         per_driver=True),
    Flag("strict-topology", _BOOL, "false", "For delayed binding (WaitForFirstConsumer): pass only "
         "the topology of the selected node to CreateVolume, instead of all matching topologies.",
         _RUN_WORKER, per_driver=True),
    Flag("immediate-topology", _BOOL, "true", "For immediate binding: pass the topologies of all "
         "nodes that have the driver (true), or no topology (false).",
         _RUN_WORKER, per_driver=True),
    # Retries and parallel work.
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed claim or "
         "volume. It doubles with each failure.", bound=POSITIVE, per_driver=True),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval.",
         bound=POSITIVE, per_driver=True),
    Flag("worker-threads", _UINT, "100", "How many creations may run at the same time per driver, "
         "across all worker processes. The same number applies separately to deletions.",
         bound=at_least(1), per_driver=True),
    Flag("cloning-protection-threads", _UINT, "1", "How many finalizers of clone sources may be "
         "removed at the same time; 0 means that none is removed.", per_driver=True),
    Flag("snapshot-orphan-sweep-interval", _DURATION, "5m", "How often to look for orphaned "
         "finalizers on snapshots that served as a source; 0 means never.",
         _SCHEDULE, bound=NOT_NEGATIVE),
    # One provisioner on each node.
    Flag("node-deployment", _BOOL, "false", "Provision volumes only for the node that is "
         "given by the environment variable NODE_NAME. An audit ignores the volumes of other "
         "nodes.",
         _RUN_WORKER | {Command.AUDIT}),
    Flag("node-deployment-immediate-binding", _BOOL, "true", "In node deployment, also provision "
         "claims with immediate binding."),
    Flag("node-deployment-base-delay", _DURATION, "20s", "First delay before a node tries to own a "
         "claim with immediate binding.", bound=POSITIVE),
    Flag("node-deployment-max-delay", _DURATION, "60s", "Longest delay before a node tries to own "
         "a claim with immediate binding.", bound=NOT_NEGATIVE),
)  # fmt: skip

_READ: Final = ("get", "list", "watch")
_STORAGE: Final = "storage.k8s.io"
_SNAPSHOT: Final = "snapshot.storage.k8s.io"

PERMISSIONS: Final = (
    Permission("", ("persistentvolumeclaims",), _READ, "what is wanted"),
    Permission("", ("persistentvolumes",), (*_READ, "create", "delete", "patch"), "the result"),
    Permission(_STORAGE, ("storageclasses",), _READ, "how to make it"),
    Permission(_STORAGE, ("csinodes",), ("list", "watch"), "topology"),
    Permission("", ("nodes",), ("list", "watch"), "topology"),
    Permission("", ("events",), ("create", "patch"), "progress and errors"),
    Permission(_STORAGE, ("volumeattachments",), ("list", "watch"), "in use?", feature="attach"),
    Permission("", ("secrets",), ("get",), "credentials of calls", feature="secrets"),
    Permission("", ("persistentvolumeclaims",), ("update",), "source finalizer", feature="cloning"),
    Permission(
        _SNAPSHOT, ("volumesnapshots",), ("get", "list", "update"), "sources", feature="snapshots"
    ),
    Permission(_SNAPSHOT, ("volumesnapshotcontents",), ("get",), "sources", feature="snapshots"),
    Permission(
        _STORAGE, ("volumeattributesclasses",), ("get",), "parameters", feature="attributes"
    ),
)

SPEC: Final = Spec(
    name="provisioner",
    program="csi-provisioner",
    fatal_code=255,
    kinds=(
        Kind(
            keys.KIND_CLAIMS,
            task="claims.sync",
            work_queue="claims",
            operations=("create",),
            subject=paths.CLAIMS,
            noun="pvc",
        ),
        Kind(
            keys.KIND_VOLUMES,
            task="volumes.sync",
            work_queue="volumes",
            operations=("delete",),
            subject=paths.VOLUMES,
            noun="pv",
        ),
        Kind(keys.KIND_CLONING, task="cloning.sync", work_queue="cloning-protection"),
        Kind(keys.KIND_SWEEP, task="snapshots.sweep", work_queue="sweep"),
    ),
    watches=WATCHES,
    make_rules=ProvisionerRules,
    lease_name=lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    gates=PROVISIONER_GATES,
    permissions=PERMISSIONS,
)
