"""Finds the bound claims whose chosen labels differ from the labels of their PVs.

A claim and its PV are compared as soon as both are known, on every event of either. So this also
finds changes that were made to the PV, or while no watcher was running. Only objects of drivers
with `--claim-labels-to-pv` are kept; without the flag, none are. The PV decides which claim it
belongs to, because anybody may name a foreign PV in a claim.
"""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING

from msgspec import Struct

from workers.constants import ANN_CLAIM_LABELS
from workers.controllers.provisioner.filters import (
    all_claim_keys,
    bound_entry,
    claim_driver,
    driver_of_volume,
)
from workers.translate.claim_metadata import chosen, patch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.controllers.provisioner.filters import ClaimEntry
    from workers.controllers.provisioner.served import Drivers, DriverView
    from workers.kube.objects import Claim, Volume
    from workers.queue.keys import Key

Labels = tuple[tuple[str, str], ...]


class LabelledClaim(Struct, frozen=True, gc=False):
    """A claim that names a PV, and its chosen labels."""

    entry: ClaimEntry
    volume: str
    labels: Labels


class LabelledVolume(Struct, frozen=True, gc=False):
    """The uid of a PV's claim, its chosen labels, and csi-fleet's annotation about them."""

    claim_uid: str
    labels: Labels
    annotation: str


class LabelRules:
    """The bound claims (by uid) and the PVs (by name) of drivers that have `label_keys`."""

    def __init__(self) -> None:
        self._claims: dict[str, LabelledClaim] = {}
        self._volumes: dict[str, LabelledVolume] = {}
        self._listed_claims: set[str] = set()
        self._listed_volumes: set[str] = set()

    def see_claim(self, claim: Claim, drivers: Drivers, *, is_listed: bool) -> list[Key]:
        """Process a claim that was added, changed or listed; return its keys if its PV differs."""
        entry = bound_entry(claim)
        view = _view(claim_driver(entry, drivers) if entry else None, drivers)
        if entry is None or view is None:
            return []
        if is_listed:
            self._listed_claims.add(entry.uid)
        labels = _chosen(claim.metadata.labels, view)
        known = LabelledClaim(entry, claim.spec.volume_name, labels)
        is_same = is_listed and self._claims.get(entry.uid) == known
        self._claims[entry.uid] = known
        return [] if is_same else self._keys(known, drivers)

    def see_volume(self, volume: Volume, drivers: Drivers, *, is_listed: bool) -> list[Key]:
        """Process a PV that was added, changed or listed; return its claim's keys if it differs.

        A PV that is being deleted is forgotten, because its labels no longer matter.
        """
        view = _view(driver_of_volume(volume, drivers), drivers)
        meta, reference = volume.metadata, volume.spec.claim_ref
        if view is None or reference is None or meta.deletion_timestamp is not None:
            self.drop_volume(meta.name)
            return []
        if is_listed:
            self._listed_volumes.add(meta.name)
        annotation = intern(meta.annotation(ANN_CLAIM_LABELS) or "")
        known = LabelledVolume(reference.uid, _chosen(meta.labels, view), annotation)
        is_same = self._volumes.get(meta.name) == known
        self._volumes[meta.name] = known
        claim = self._claims.get(reference.uid)
        return [] if is_same or claim is None else self._keys(claim, drivers)

    def drop_claim(self, claim: Claim) -> None:
        """Forget a claim that was deleted."""
        self._claims.pop(claim.metadata.uid, None)

    def drop_volume(self, name: str) -> None:
        """Forget a PV that was deleted."""
        self._volumes.pop(name, None)

    def begin_claims(self) -> None:
        """Start recording which claims still exist."""
        self._listed_claims = set()

    def end_claims(self) -> None:
        """Forget the claims that were not in the list."""
        _keep(self._claims, self._listed_claims)
        self._listed_claims = set()

    def begin_volumes(self) -> None:
        """Start recording which PVs still exist."""
        self._listed_volumes = set()

    def end_volumes(self) -> None:
        """Forget the PVs that were not in the list."""
        _keep(self._volumes, self._listed_volumes)
        self._listed_volumes = set()

    def all_keys(self, drivers: Drivers) -> Iterable[Key]:
        """Return the keys of all claims whose PVs differ."""
        return [key for claim in self._claims.values() for key in self._keys(claim, drivers)]

    def _keys(self, claim: LabelledClaim, drivers: Drivers) -> list[Key]:
        volume = self._volumes.get(claim.volume)
        if volume is None or volume.claim_uid != claim.entry.uid:
            return []
        driver = claim_driver(claim.entry, drivers)
        view = _view(driver, drivers)
        if driver is None or view is None:
            return []
        keys = view.label_keys
        if not patch(
            chosen(dict(claim.labels), keys), dict(volume.labels), volume.annotation, keys
        ):
            return []
        return all_claim_keys(claim.entry, driver, drivers)


def _view(driver: str | None, drivers: Drivers) -> DriverView | None:
    """Return the view of a known driver that has `label_keys`, else None."""
    view = drivers.first(driver) if driver else None
    return view if view is not None and view.label_keys else None


def _chosen(labels: dict[str, str] | None, view: DriverView) -> Labels:
    found = chosen(labels, view.label_keys)
    return tuple((intern(key), intern(value)) for key, value in found.items())


def _keep(table: dict[str, LabelledClaim] | dict[str, LabelledVolume], names: set[str]) -> None:
    for name in table.keys() - names:
        del table[name]
