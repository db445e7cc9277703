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

UID_LENGTH: Final = Bound(lambda n: n == -1 or 1 <= n <= 32, "be -1 or 1 to 32")

FLAGS: Final = (
    Flag("timeout", _DURATION, "10s", "Deadline of each CSI call (creation, deletion, capacity "
         "and the identity calls at start).",
         _RUN_WORKER | _DRIVER_TOOLS, bound=POSITIVE, per_driver=True),
    # Volumes.
    Flag("volume-name-prefix", _STRING, "pvc", "Volume and PV name are this, a dash and the UID "
         "of the claim.", per_driver=True),
    Flag("volume-name-uuid-length", _INT, "-1", "Keep only that many characters (1 to 32) of the "
         "UID without its dashes; -1 keeps the whole UID with its dashes.",
         bound=UID_LENGTH, per_driver=True),
    Flag("default-fstype", _STRING, "", "File system type when the class names none; empty leaves "
         "the choice to the driver.", _RUN_WORKER, per_driver=True),
    Flag("extra-create-metadata", _BOOL, "false", "Add names of claim and volume to the "
         "parameters of CreateVolume.", _RUN_WORKER, per_driver=True),
    Flag("controller-publish-readonly", _BOOL, "false", "Mark a PV read-only when its only access "
         "mode is ReadOnlyMany.", _RUN_WORKER, per_driver=True),
    Flag("prevent-volume-mode-conversion", _BOOL, "true", "A claim restored from a snapshot may "
         "not change the volume mode unless the snapshot content allows it.", _RUN_WORKER,
         per_driver=True),
    Flag("strict-topology", _BOOL, "false", "Late binding: pass only the selected node's topology "
         "to CreateVolume instead of all matching ones.", _RUN_WORKER, per_driver=True),
    Flag("immediate-topology", _BOOL, "true", "Immediate binding: pass the topologies of all nodes "
         "with the driver (true) or none (false).", _RUN_WORKER, per_driver=True),
    # Retries and parallel work.
    Flag("retry-interval-start", _DURATION, "1s", "First retry interval of a failed item; doubles "
         "with each failure.", bound=POSITIVE, per_driver=True),
    Flag("retry-interval-max", _DURATION, "5m", "Longest retry interval.",
         bound=POSITIVE, per_driver=True),
    Flag("worker-threads", _UINT, "100", "Simultaneous creations and, apart from them, deletions "
         "per driver, over all worker processes.", bound=at_least(1), per_driver=True),
    Flag("cloning-protection-threads", _UINT, "1", "Simultaneous removals of the clone source "
         "finalizer; 0 removes none.", per_driver=True),
    Flag("snapshot-orphan-sweep-interval", _DURATION, "5m", "How often to look for orphaned "
         "finalizers of snapshot sources; 0 never.", _SCHEDULE, bound=NOT_NEGATIVE),
    # One provisioner on each node.
    Flag("node-deployment", _BOOL, "false", "Provision only for the node named by the environment "
         "variable NODE_NAME; an audit leaves out the volumes of other nodes.",
         _RUN_WORKER | {Command.AUDIT}),
    Flag("node-deployment-immediate-binding", _BOOL, "true", "Take claims with immediate binding "
         "in node deployment."),
    Flag("node-deployment-base-delay", _DURATION, "20s", "First wait before trying to own such a "
         "claim.", bound=POSITIVE),
    Flag("node-deployment-max-delay", _DURATION, "60s", "Longest wait before trying to own such a "
         "claim.", bound=NOT_NEGATIVE),
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
    Permission(
        _SNAPSHOT, ("volumesnapshotcontents",), ("get", "list"), "sources", feature="snapshots"
    ),
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
