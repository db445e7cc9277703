"""`adopt --verify` and `release --verify`: creates a claim, and deletes it once it is Bound.

The verification needs only the user's own permissions, and no pod. If the claim's class waits for a
consumer, the command writes a node into the claim, as the scheduler would. The claim's name is
derived from the driver's name, so an interrupted command leaves at most one claim, which the next
command deletes first. If the verification fails, the driver is not moved back.

A volume that was not created for the claim is never changed or deleted. Kubernetes binds a claim to
a free volume before it asks a provisioner, so the claim may get a volume that holds somebody's
data.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from workers.cli import adoptcentral, gateway, terminal
from workers.cli.doctor import FAIL, Finding
from workers.constants import ANN_SELECTED_NODE
from workers.errors import ApiError
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.migration.plugins import in_tree_name
from workers.translate import quantity
from workers.translate.claims import WAIT_FOR_FIRST_CONSUMER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject

POLL_SECONDS: Final = 1.0
SIZE: Final = "1Gi"
# Kubernetes sets this on a volume that was free, but not on a volume that a provisioner created for
# a claim.
_BOUND_BY_KUBERNETES: Final = "pv.kubernetes.io/bound-by-controller"


class _EarlierVolumeError(Exception):
    """The claim has a volume that was not created for it; the message explains what to do."""


@dataclass(slots=True)
class Verification:
    """The claim of one command.

    Attributes:
        driver: the name of the driver.
        namespace: the namespace of the driver's workload; the claim is created there.
        class_name: the class that the user named; `findings` sets it if only one class fits.
        sleep: a function that waits for the given number of seconds.
        clock: a function that returns the time in seconds.
    """

    tools: Tools
    driver: str
    namespace: str
    class_name: str = ""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    is_delayed: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The name of the claim."""
        return f"{gateway.name_of(self.driver)}-verify"

    @property
    def place(self) -> str:
        """The namespace and name of the claim."""
        return f"{self.namespace}/{self.name}"

    def findings(self) -> Iterator[Finding]:
        """Choose the class, or yield why none can be chosen, before any object is changed."""
        names = {self.driver, in_tree_name(self.driver)}
        items = self.tools.kube.list(paths.STORAGE_CLASSES)
        fitting = {one["metadata"]["name"]: one for one in items if one["provisioner"] in names}
        known = ", ".join(sorted(fitting)) or "none"
        if self.class_name and self.class_name not in fitting:
            yield self._refusal(
                f"--class={self.class_name} is not a StorageClass of {self.driver} (it has: "
                f"{known}). Name a different class, or remove --verify"
            )
        elif not fitting:
            yield self._refusal(
                f"No StorageClass has the provisioner {self.driver}, so --verify cannot create a "
                "claim. Create a StorageClass, or remove --verify"
            )
        elif len(fitting) > 1 and not self.class_name:
            yield self._refusal(
                f"Several StorageClasses have the provisioner {self.driver}: {known}. Choose the "
                "class for --verify with --class=NAME"
            )
        else:
            claim = adoptcentral.find(self.tools.kube, paths.CLAIMS, self.name, self.namespace)
            if claim is not None and not adoptcentral.is_made(claim):
                yield self._refusal(
                    f"Claim {self.place} already exists, but --verify did not create it. Rename or "
                    "delete it"
                )
            self.class_name = self.class_name or next(iter(fitting))
            mode = fitting[self.class_name].get("volumeBindingMode")
            self.is_delayed = mode == WAIT_FOR_FIRST_CONSUMER
            if self.is_delayed and not self._node():
                yield self._refusal(
                    f"StorageClass {self.class_name} waits for a pod, but no schedulable node has "
                    f"{self.driver}. Start the driver's node plugin, or remove --verify"
                )
            free = [one for one in self.tools.kube.list(paths.VOLUMES) if self._would_bind(one)]
            if free:
                yield self._refusal(
                    f"PersistentVolume {free[0]['metadata']['name']} is Available, and the claim "
                    "of --verify would be bound to it instead of to a new volume of class "
                    f"{self.class_name}. Choose a different class with --class=NAME, or remove "
                    "--verify"
                )

    def run(self, asked_in: str, undo: str) -> int:
        """Create the claim, wait until it is Bound, and delete it; return the exit code.

        Args:
            asked_in: the namespace of pods in which `explain` can run; "" if there is none.
            undo: the command that undoes the move.
        """
        seconds = self.tools.settings.tool.wait_seconds
        try:
            missed = self._steps(self.clock() + seconds)
        except ApiError as error:
            missed = f"the API server returned: {error}"
        except _EarlierVolumeError as error:
            return self._not_verified(str(error), "", undo)
        if not missed:
            terminal.write(
                f"Verified: a claim of class {self.class_name} was Bound, and the claim and its "
                "volume were deleted"
            )
            return 0
        cause = self._cause(asked_in)
        try:
            self._is_absent()
            left = f"The claim {self.place} is being deleted."
        except ApiError:
            left = f"Delete the claim {self.place}."
        except _EarlierVolumeError as error:
            left = str(error)
        missed = f"{missed} (class {self.class_name}). {cause} {left}"
        return self._not_verified(missed, f" within --wait={seconds:g}s", undo)

    def _not_verified(self, missed: str, when: str, undo: str) -> int:
        terminal.write(
            f"Not verified{when}: {missed} {self.driver} remains as this command left it. Repeat "
            f"the command to verify again, or undo it: csi-fleet {undo} {self.driver}"
        )
        return 1

    def _steps(self, end: float) -> str:
        """Run all steps; return the step that did not finish in time, or "" if all did."""
        if not self._until(end, self._is_absent):
            return f"the claim {self.place} of an earlier command was not deleted"
        self.tools.kube.create(paths.CLAIMS, self._claim())
        if not self._until(end, self._is_bound):
            return f"the claim {self.place} was not Bound"
        claim = self.tools.kube.get(paths.CLAIMS, self.name, namespace=self.namespace)
        volume = claim["spec"]["volumeName"]
        if not self._until(end, self._is_absent):
            return f"the claim {self.place} was Bound, but has not been deleted"
        if not self._until(
            end, lambda: adoptcentral.find(self.tools.kube, paths.VOLUMES, volume) is None
        ):
            return f"the claim {self.place} was Bound, but its volume {volume} has not been deleted"
        return ""

    def _until(self, end: float, is_done: Callable[[], bool]) -> bool:
        while not is_done():
            if self.clock() > end:
                return False
            self.sleep(POLL_SECONDS)
        return True

    def _is_bound(self) -> bool:
        claim = self.tools.kube.get(paths.CLAIMS, self.name, namespace=self.namespace)
        is_free = not claim["spec"].get("volumeName")
        notes = claim["metadata"].get("annotations") or {}
        # If the node has no room, the provisioner removes the annotation, so it has to be set
        # again.
        if self.is_delayed and is_free and ANN_SELECTED_NODE not in notes:
            note = {ANN_SELECTED_NODE: self._node()}
            self.tools.kube.merge(paths.CLAIMS, claim, {"metadata": {"annotations": note}})
        return bool((claim.get("status") or {}).get("phase") == "Bound")

    def _is_absent(self) -> bool:
        """Delete the claim, if it exists, and its volume; return True once the claim is gone.

        Raises:
            _EarlierVolumeError: the claim has a volume that was not created for it.
        """
        claim = adoptcentral.find(self.tools.kube, paths.CLAIMS, self.name, self.namespace)
        if claim is None:
            return True
        if not adoptcentral.is_made(claim) or claim["metadata"].get("deletionTimestamp"):
            return False
        volumes = self._volumes_of(claim)
        earlier = [one for one in volumes if not _is_made_for(one, claim)]
        if endangered := [one for one in earlier if _policy(one) != "Retain"]:
            raise self._earlier(endangered[0])
        for volume in volumes if not earlier else ():
            if _policy(volume) != "Delete":
                change = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
                self.tools.kube.merge(paths.VOLUMES, volume, change)
        uid = claim["metadata"]["uid"]
        with suppress(NotFoundError):
            self.tools.kube.delete(paths.CLAIMS, self.name, namespace=self.namespace, uid=uid)
        if earlier:
            raise self._earlier(earlier[0])
        return adoptcentral.find(self.tools.kube, paths.CLAIMS, self.name, self.namespace) is None

    def _volumes_of(self, claim: JsonObject) -> list[JsonObject]:
        """Return the volumes that the claim names or that name the claim.

        Kubernetes writes the claim into the volume first, so the claim may not name its volume yet.
        """
        name, uid = claim["spec"].get("volumeName"), claim["metadata"]["uid"]
        return [
            one
            for one in self.tools.kube.list(paths.VOLUMES)
            if one["metadata"]["name"] == name or _claim_of(one).get("uid") == uid
        ]

    def _earlier(self, volume: JsonObject) -> _EarlierVolumeError:
        """Return the error for a volume that was not created for the claim.

        The message explains what was done with the volume.
        """
        name = volume["metadata"]["name"]
        bound = (
            f"the claim {self.place} was bound to PersistentVolume {name}, which was not created "
            "for it. The volume is unchanged"
        )
        if _policy(volume) == "Retain":
            return _EarlierVolumeError(
                f"{bound}, and the claim was deleted. To make the volume Available again, run "
                f"kubectl patch pv {name} --type=json -p "
                '\'[{"op":"remove","path":"/spec/claimRef"}]\'. Then verify with a class '
                "that has no Available volume: --class=NAME."
            )
        retain = '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
        return _EarlierVolumeError(
            f"{bound}, and the claim was kept, because deleting it would delete the volume's data "
            f"(reclaim policy {_policy(volume)}). To keep the data, first change the policy: "
            f"kubectl patch pv {name} -p '{retain}'. Then delete the claim: kubectl -n "
            f"{self.namespace} delete pvc {self.name}."
        )

    def _would_bind(self, volume: JsonObject) -> bool:
        """Return True if Kubernetes may bind the claim to the volume without a provisioner."""
        spec = volume["spec"]
        if reference := _claim_of(volume):
            named = f"{reference.get('namespace')}/{reference.get('name')}"
            return named == self.place and not reference.get("uid")
        return (
            not self.is_delayed
            and spec.get("storageClassName") == self.class_name
            and (volume.get("status") or {}).get("phase", "Available") in {"Available", "Pending"}
            and quantity.parse(spec["capacity"]["storage"]) >= quantity.parse(SIZE)
        )

    def _claim(self) -> JsonObject:
        metadata: JsonObject = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict([adoptcentral.MADE]),
        }
        if self.is_delayed:
            metadata["annotations"] = {ANN_SELECTED_NODE: self._node()}
        return {
            "apiVersion": paths.CLAIMS.api_version,
            "kind": paths.CLAIMS.kind,
            "metadata": metadata,
            "spec": {
                "storageClassName": self.class_name,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": SIZE}},
            },
        }

    def _node(self) -> str:
        """Return a node that accepts pods and has the driver, or "" if there is none."""
        having = {
            one["metadata"]["name"]
            for one in self.tools.kube.list(paths.CSI_NODES)
            if any(each["name"] == self.driver for each in one["spec"].get("drivers") or ())
        }
        for node in self.tools.kube.list(paths.NODES):
            states = (node.get("status") or {}).get("conditions") or ()
            is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in states)
            is_open = not (node.get("spec") or {}).get("unschedulable")
            if node["metadata"]["name"] in having and is_ready and is_open:
                return str(node["metadata"]["name"])
        return ""

    def _cause(self, asked_in: str) -> str:
        """Return the cause from `explain`, or the claim's last warning if `explain` cannot run."""
        report: JsonObject = {}
        if asked_in:
            words = ("explain", "pvc", self.place, "-o", "json")
            report = adoptcentral.asked_in_pod(self.tools, asked_in, *words) or {}
        if text := " ".join(str(report[one]) for one in ("text", "advice") if report.get(one)):
            return f"Cause ({report.get('cause')}): {text}"
        try:
            claim = self.tools.kube.get(paths.CLAIMS, self.name, namespace=self.namespace)
            events = list(self.tools.kube.list_warnings(self.namespace, claim["metadata"]["uid"]))
        except ApiError:
            events = []
        if not events:
            return (
                "No event gives a reason. To find it, run kubectl csi-fleet explain pvc "
                f"{self.place}."
            )
        newest = max(events, key=lambda one: str(one.get("lastTimestamp") or ""))
        return f"Newest event ({newest.get('reason')}): {newest.get('message')}."

    def _refusal(self, text: str) -> Finding:
        return Finding("verify", FAIL, text)


def _claim_of(volume: JsonObject) -> JsonObject:
    return volume["spec"].get("claimRef") or {}


def _policy(volume: JsonObject) -> str:
    return str(volume["spec"].get("persistentVolumeReclaimPolicy") or "Retain")


def _is_made_for(volume: JsonObject, claim: JsonObject) -> bool:
    """Return True if it is certain that a provisioner created the volume for the claim."""
    made, asked = volume["metadata"], claim["metadata"]
    return (
        _claim_of(volume).get("uid") == asked["uid"]
        and str(made.get("creationTimestamp") or "") >= str(asked["creationTimestamp"])
        and _BOUND_BY_KUBERNETES not in (made.get("annotations") or {})
    )
