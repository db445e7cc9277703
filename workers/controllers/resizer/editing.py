"""Builds the changes to a claim as one merge patch against the object that was read.

Each function below implements one row of the tables R-035, R-051, R-060, R-102, R-105, R-110 and
R-111 on a `ClaimEdit`. Several functions can share one edit, so that an expansion and a
modification need only a single write (MR-001). A patch names the claim's uid and resourceVersion,
so it applies only to the state from which it was computed (MR-040). Values that are already equal
are not written (DR-009).
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.resizer.words import (
    ANN_NOT_REQUIRED,
    MESSAGE_NODE_PART,
    RESIZE_CONDITIONS,
    Condition,
    ModifyState,
    Part,
)
from workers.translate.fields import annotations_of, value_at

if TYPE_CHECKING:
    from collections.abc import Collection

    from workers.controllers.resizer.decide import Expand
    from workers.kube.objects import JsonObject

_STORAGE: Final = "storage"


class ClaimEdit:
    """Collects changes to one claim.

    Args:
        claim: the live object, which is not modified.
        now: the time for new conditions, in the API server's format.
    """

    def __init__(self, claim: JsonObject, now: str) -> None:
        self.claim = claim
        self._now = now
        self._status: JsonObject = {}
        self._annotations: dict[str, str | None] = {}
        found = value_at(claim, "status", "conditions") or []
        self._before: list[JsonObject] = found
        self._conditions: list[JsonObject] = deepcopy(found)

    def set(self, field: str, value: Any) -> None:
        """Set a field of the status; None removes the field."""
        self._status[field] = value

    def set_storage(self, field: str, value: str | None) -> None:
        """Set the `storage` entry of a map in the status.

        None removes the entry, and the map too if it is then empty.
        """
        others = {
            name: one
            for name, one in (value_at(self.claim, "status", field) or {}).items()
            if name != _STORAGE
        }
        self._status[field] = {_STORAGE: value} if value is not None or others else None

    def annotate(self, name: str, value: str | None) -> None:
        """Set an annotation; None removes it."""
        self._annotations[name] = value

    def drop(self, kinds: Collection[str]) -> None:
        """Remove the conditions of these types."""
        self._conditions = [one for one in self._conditions if one.get("type") not in kinds]

    def hold(
        self, kind: Condition, message: str = "", *, reason: str = "", probed: bool = False
    ) -> None:
        """Set a condition to True; its transition time changes only with its status or reason.

        Args:
            kind: the type of the condition.
            message: the message for users.
            reason: the reason in CamelCase, or "".
            probed: whether to set lastProbeTime too, as in the conditions of a modification
                (R-112).
        """
        wanted: JsonObject = {"type": str(kind), "status": "True"}
        if reason:
            wanted["reason"] = reason
        if message:
            wanted["message"] = message
        old = next((one for one in self._conditions if one.get("type") == kind), None)
        is_same = old is not None and old.get("status") == "True"
        is_same = is_same and (old or {}).get("reason", "") == reason
        if old is not None and is_same and old.get("message", "") == message and not probed:
            return
        kept = (old or {}).get("lastTransitionTime") if is_same else None
        wanted["lastTransitionTime"] = kept or self._now
        if probed:
            wanted["lastProbeTime"] = self._now
        if old is None:
            self._conditions.append(wanted)
        else:
            self._conditions[self._conditions.index(old)] = wanted

    def patch(self) -> JsonObject | None:
        """Return the merge patch, or None if it would change nothing."""
        status = {
            field: value
            for field, value in self._status.items()
            if not _is_equal(value_at(self.claim, "status", field), value)
        }
        if self._conditions != self._before:
            status["conditions"] = self._conditions or None
        old = annotations_of(self.claim)
        annotations = {
            name: value for name, value in self._annotations.items() if old.get(name) != value
        }
        if not status and not annotations:
            return None
        body: JsonObject = {"metadata": {"annotations": annotations}} if annotations else {}
        return body | ({"status": status} if status else {})


def _is_equal(old: Any, new: Any) -> bool:
    """Return True if merging `new` over `old` changes nothing."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_is_equal(old.get(name), value) for name, value in new.items())
    return bool(old == new)


# Expansion.


def mark_resizing(edit: ClaimEdit, plan: Expand, part: str) -> None:
    """Record the start of an expansion (R-035; R-090 in legacy mode).

    The condition names no sizes (DR-034). An infeasible size is set to "in progress" before it is
    requested again. If the response is then lost, the same size must still be requested (DR-007,
    MR-030).
    """
    if plan.is_legacy:
        edit.drop(RESIZE_CONDITIONS - {Condition.RESIZING})
        edit.hold(Condition.RESIZING)
        return
    if plan.is_new:
        edit.set_storage("allocatedResources", plan.target.text)
        edit.drop(RESIZE_CONDITIONS - {Condition.RESIZING})
    if plan.is_new or part == Part.CONTROLLER_INFEASIBLE:
        edit.set_storage("allocatedResourceStatuses", Part.CONTROLLER_IN_PROGRESS)
    edit.hold(Condition.RESIZING)
    edit.annotate(ANN_NOT_REQUIRED, None)


def mark_expand_failed(edit: ClaimEdit, message: str, *, is_infeasible: bool) -> None:
    """Record a final error from an expansion (R-051)."""
    if is_infeasible:
        edit.set_storage("allocatedResourceStatuses", Part.CONTROLLER_INFEASIBLE)
    edit.hold(Condition.CONTROLLER_ERROR, f"failed to expand pvc with {message}")


def mark_node_pending(edit: ClaimEdit, *, is_legacy: bool) -> None:
    """Record that the node must expand the volume too; clear earlier errors (R-060, DR-010)."""
    if is_legacy:
        edit.drop(RESIZE_CONDITIONS - {Condition.FILE_SYSTEM_PENDING})
    else:
        edit.set_storage("allocatedResourceStatuses", Part.NODE_PENDING)
        edit.drop({Condition.CONTROLLER_ERROR})
        edit.annotate(ANN_NOT_REQUIRED, None)
    edit.hold(Condition.FILE_SYSTEM_PENDING, MESSAGE_NODE_PART)


def mark_resized(edit: ClaimEdit, size: str, *, is_legacy: bool) -> None:
    """Record a finished expansion that needs no work on the node (R-060)."""
    edit.set_storage("capacity", size)
    edit.drop(RESIZE_CONDITIONS)
    if not is_legacy:
        edit.set_storage("allocatedResourceStatuses", None)
        edit.annotate(ANN_NOT_REQUIRED, "true")


# Modification.


def _set_state(edit: ClaimEdit, state: ModifyState, class_name: str | None) -> None:
    value = {"status": str(state)}
    if class_name is not None:
        value["targetVolumeAttributesClassName"] = class_name
    edit.set("modifyVolumeStatus", value)


def mark_modifying(edit: ClaimEdit, class_name: str) -> None:
    """Record the start of a modification (R-102)."""
    _set_state(edit, ModifyState.IN_PROGRESS, class_name)
    edit.hold(
        Condition.MODIFYING, f'Modifying volume to "{class_name}" is in progress.', probed=True
    )


def mark_modify_pending(edit: ClaimEdit) -> None:
    """Record that the class cannot be used now; keep the target and the conditions (R-102)."""
    _set_state(edit, ModifyState.PENDING, None)


def mark_modify_failed(
    edit: ClaimEdit,
    class_name: str,
    *,
    is_infeasible: bool,
    may_run: bool,
    reason: str,
    message: str,
) -> None:
    """Record a failed modification (R-111, R-112)."""
    state = ModifyState.INFEASIBLE if is_infeasible else ModifyState.IN_PROGRESS
    _set_state(edit, state, class_name)
    rest = "is still in progress." if may_run else "failed. Waiting for retry."
    edit.hold(Condition.MODIFYING, f'Modifying volume to "{class_name}" {rest}', probed=True)
    edit.hold(Condition.MODIFY_ERROR, message, reason=reason, probed=True)


def mark_modified(edit: ClaimEdit, class_name: str) -> None:
    """Record a finished modification (R-110)."""
    edit.set("currentVolumeAttributesClassName", class_name)
    edit.set("modifyVolumeStatus", None)
    edit.drop({Condition.MODIFYING, Condition.MODIFY_ERROR})


def mark_modify_canceled(edit: ClaimEdit) -> None:
    """Clear the conditions of a withdrawn class; keep the class's state (R-105, DR-024)."""
    edit.drop({Condition.MODIFYING, Condition.MODIFY_ERROR})
