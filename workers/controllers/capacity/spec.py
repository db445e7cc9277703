"""Describes capacity publishing as data; it is a part of the provisioner and runs with it."""

from __future__ import annotations

from typing import Final

from workers.config.flags import POSITIVE, Command, Flag, at_least
from workers.config.flags import Kind as Value
from workers.controllers.capacity.rules import WATCHES, CapacityRules
from workers.controllers.capacity.settings import read_settings
from workers.queue import keys
from workers.spec import Kind, Spec

_RUN_WORKER: Final = frozenset({Command.RUN, Command.WORKER})
_SCHEDULE: Final = _RUN_WORKER | {Command.BEAT}
_BOOL, _INT, _UINT = Value.BOOL, Value.INT, Value.UINT
_FLOAT, _DURATION = Value.FLOAT, Value.DURATION

FLAGS: Final = (
    Flag("kube-api-capacity-qps", _FLOAT, "1", "How many CSIStorageCapacity objects may be written "
         "per second for each driver, across all worker processes. This limit is separate from the "
         "limit for all other requests."),
    Flag("kube-api-capacity-burst", _INT, "5", "How many objects may be written in a burst "
         "above --kube-api-capacity-qps."),
    # Capacity.
    Flag("enable-capacity", _BOOL, "false", "Publish CSIStorageCapacity objects with the results "
         "of the driver's GetCapacity. Requires the environment variables NAMESPACE and POD_NAME.",
         _SCHEDULE),
    Flag("capacity-for-immediate-binding", _BOOL, "false", "Also publish capacity for storage "
         "classes with immediate binding."),
    Flag("capacity-poll-interval", _DURATION, "1m", "How often the capacity of all segments is "
         "refreshed.",
         _SCHEDULE, bound=POSITIVE),
    Flag("capacity-ownerref-level", _INT, "1", "Owner of the capacity objects: -1 none, 0 the pod, "
         "1 its StatefulSet or DaemonSet, 2 its Deployment, and so on.", _RUN_WORKER,
         bound=at_least(-1)),
    Flag("capacity-threads", _UINT, "1", "How many GetCapacity calls may run at the same time per "
         "driver.",
         per_driver=True),
    Flag("capacity-always-topology", _BOOL, "false", "Also send an (empty) topology with "
         "GetCapacity to a driver without VOLUME_ACCESSIBILITY_CONSTRAINTS, as csi-provisioner "
         "does. The CSI specification forbids this.", _RUN_WORKER, upstream=False),
)  # fmt: skip

SPEC: Final = Spec(
    name="capacity",
    program="csi-provisioner",
    fatal_code=255,
    kinds=(
        Kind(
            keys.KIND_CAPACITY,
            task="capacity.sync",
            work_queue="csistoragecapacity",
            operations=("capacity",),
        ),
    ),
    watches=WATCHES,
    make_rules=CapacityRules,
    flags=FLAGS,
    read_settings=read_settings,
    part_of="provisioner",
)
