"""Checks what the sidecar did to each object that a shadow has made a prediction about.

One step reads the open predictions and their objects. A prediction stays open until the sidecar has
acted, because a failing driver leaves nothing to compare. If the sidecar has changed the object but
the object still does not match the prediction after a while, the verdict is a difference.
"""

from __future__ import annotations

import time
from calendar import timegm
from typing import TYPE_CHECKING, Any, Final, Protocol

from workers import constants as k
from workers.engine.shadow.comparing import Verdict, compare
from workers.engine.shadow.history import History
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.engine.shadow.recording import Prediction
    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources
    from workers.observability.metrics import Metrics
    from workers.queue.keys import Key
    from workers.queue.shadows import Shadows

_log = get_logger(__name__)

STEP_SECONDS: Final = 2.0
# Time to wait before a mismatch counts, because a sidecar may need several writes for one
# prediction.
SETTLE_SECONDS: Final = 30.0
# The interval between searches for objects that were created without a prediction.
LOOK_SECONDS: Final = 20.0
UNFORESEEN: Final = "unforeseen"
# The fields in an object's spec that name the object it was created for.
_OWNERS: Final = {
    "claimRef": paths.CLAIMS,
    "volumeSnapshotRef": paths.SNAPSHOTS,
    "volumeGroupSnapshotRef": paths.GROUP_SNAPSHOTS,
}


class Past(Protocol):
    """The states of an object between two checks (`history.History`)."""

    def version(self, path: str) -> str:
        """Return the resourceVersion at which to start watching for an object to be created."""

    def states(self, path: str, version: str) -> list[JsonObject]:
        """Return the object's states since `version`, oldest first; empty if they are lost."""


class Judge:
    """Judges the predictions; several processes may do so, and each verdict counts only once.

    Args:
        shadows: the records of the predictions and verdicts.
        kube: reads objects from the API server.
        metrics: counts the verdicts.
        drivers: returns the names of the drivers that this process serves.
        now: returns the time in seconds since 1970.
        settle_seconds: see `SETTLE_SECONDS`.
        history: reads the states of objects between two checks.
    """

    def __init__(
        self,
        shadows: Shadows,
        kube: KubeResources,
        metrics: Metrics,
        *,
        drivers: Callable[[], Iterable[str]],
        now: Callable[[], float] = time.time,
        settle_seconds: float = SETTLE_SECONDS,
        history: Past | None = None,
    ) -> None:
        self._shadows = shadows
        self._kube = kube
        self._metrics = metrics
        self._drivers = drivers
        self._now = now
        self._settle_seconds = settle_seconds
        self._history = history or History(kube.client)
        self._read_at: dict[tuple[str, str], str] = {}
        self._started = now()
        self._changed_at: dict[tuple[str, str], float] = {}
        self._look_at = now() + LOOK_SECONDS

    def predict(self, key: Key, prediction: Prediction) -> None:
        """Store a prediction (implements the port `recording.Store`).

        The object, as this reconcile found it, shows what the sidecar did after the earlier
        prediction. That prediction is judged now, because a volume may be deleted before the next
        check.
        """
        earlier = self._shadows.find(key.driver, prediction.path)
        if earlier is not None and prediction.base is not None:
            self._judge(key.driver, prediction.path, earlier, _without_noise(prediction.base))
        record = {
            "key": key.text,
            "base": _without_noise(prediction.base),
            "wanted": _without_noise(prediction.wanted),
            "calls": list(prediction.calls),
            "at": prediction.at,
        }
        if prediction.base is None:
            record["version"] = self._history.version(prediction.path)
        self._shadows.put(key.driver, prediction.path, record)

    def step(self) -> float:
        """Judge the predictions that can be judged now; return the seconds until the next step.

        Raises:
            QueueUnavailable: Redis does not answer.
            ApiError: the API server does not answer.
        """
        for driver in (*self._drivers(), ""):
            for path, record in self._shadows.open(driver).items():
                self._judge(driver, path, record, self._read(path))
        if self._now() >= self._look_at:
            self._look_at = self._now() + LOOK_SECONDS
            self._look_for_unforeseen()
            self._drop_unwanted()
        return STEP_SECONDS

    def _judge(
        self, driver: str, path: str, record: dict[str, Any], live: JsonObject | None
    ) -> None:
        verdict, found = self._compare(driver, path, record, live)
        if verdict is Verdict.WAITS and found:
            verdict = self._patience(driver, path, record, live)
        if verdict is Verdict.WAITS:
            return
        self._close(driver, path, record, verdict, found)

    def _compare(
        self, driver: str, path: str, record: dict[str, Any], live: JsonObject | None
    ) -> tuple[Verdict, tuple[str, ...]]:
        """Compare a prediction with the live object and, on a mismatch, with the past states."""
        base, wanted = record["base"], record["wanted"]
        verdict, found = compare(path, base, wanted, live)
        is_changed = _version(live) not in {_version(base), self._read_at.get((driver, path))}
        since = record.get("version") or _version(base)
        if verdict is Verdict.AGREES or not is_changed or not since:
            return verdict, found
        self._read_at[driver, path] = _version(live)
        past = map(_without_noise, self._history.states(path, since))
        states = [compare(path, base, wanted, one) for one in past]
        if base is None and states:
            return states[0]  # as it was created
        return next((one for one in states if one[0] is Verdict.AGREES), (verdict, found))

    def _close(
        self,
        driver: str,
        path: str,
        record: dict[str, Any],
        verdict: Verdict,
        found: tuple[str, ...] = (),
    ) -> None:
        self._changed_at.pop((driver, path), None)
        self._read_at.pop((driver, path), None)
        note = None
        if verdict is not Verdict.AGREES:
            note = {"at": self._now(), "found": list(found)[:20], "calls": record["calls"]}
            _log.info("shadow", verdict=verdict.value, object=path, found="; ".join(found))
        if self._shadows.close(driver, path, verdict.value, note):
            self._count(driver, verdict.value)

    def _patience(
        self, driver: str, path: str, record: dict[str, Any], live: JsonObject | None
    ) -> Verdict:
        """Return WAITS, or DIFFERS if the object changed some time ago and still does not match."""
        place = (driver, path)
        if live is None or _version(live) == _version(record["base"]):
            return Verdict.WAITS
        since = self._changed_at.setdefault(place, self._now())
        return Verdict.DIFFERS if self._now() - since > self._settle_seconds else Verdict.WAITS

    def _look_for_unforeseen(self) -> None:
        """Record the volumes that have been created since the start without a prediction."""
        names = set(self._drivers())
        for volume in self._kube.list(paths.VOLUMES):
            metadata = volume["metadata"]
            driver = (metadata.get("annotations") or {}).get(k.ANN_PROVISIONED_BY, "")
            place = paths.VOLUMES.path(metadata["name"])
            if driver not in names or _seconds(metadata) <= self._started:
                continue
            if not self._shadows.is_known(driver, place):
                self._shadows.tell(driver, place, UNFORESEEN, {"at": self._now(), "found": []})
                self._count(driver, UNFORESEEN)

    def _drop_unwanted(self) -> None:
        """Close the predictions about objects that were never created if their owner is gone."""
        for driver in (*self._drivers(), ""):
            for path, record in self._shadows.open(driver).items():
                is_new = self._now() - record["at"] <= self._settle_seconds
                if record["base"] is not None or is_new or (whose := _owner(record)) is None:
                    continue
                owner_path, uid = whose
                owner = self._read(owner_path)
                if (owner is None or owner["metadata"].get("uid") != uid) and not self._read(path):
                    self._close(driver, path, record, Verdict.GONE)

    def _read(self, path: str) -> JsonObject | None:
        try:
            return _without_noise(self._kube.client.get(path))
        except NotFoundError:
            return None

    def _count(self, driver: str, verdict: str) -> None:
        self._metrics.shadow_verdicts.labels(driver, verdict).inc()


def _without_noise(item: JsonObject | None) -> JsonObject | None:
    if item is None:
        return None
    kept = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    return {**item, "metadata": kept}


def _owner(record: dict[str, Any]) -> tuple[str, str] | None:
    """Return the path and uid of the object that an object is created for, or None."""
    spec = (record["wanted"] or {}).get("spec") or {}
    for name, resource in _OWNERS.items():
        if isinstance(found := spec.get(name), dict):
            named, namespace = str(found.get("name", "")), str(found.get("namespace", ""))
            return resource.path(named, namespace=namespace), str(found.get("uid", ""))
    return None


def _version(item: JsonObject | None) -> str:
    return str(((item or {}).get("metadata") or {}).get("resourceVersion", ""))


def _seconds(metadata: dict[str, Any]) -> float:
    made = metadata.get("creationTimestamp")
    return timegm(time.strptime(made, "%Y-%m-%dT%H:%M:%SZ")) if made else 0.0
