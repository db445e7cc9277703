"""Runs all checks on a plug-in, in process, without a cluster.

`make` returns a new provisioner each time, as in a restarted worker: a second instance must find
what the first instance created. The claim and the class are minimal; pass the parameters that your
class needs.
"""

from __future__ import annotations

import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workers.conformance.faults import Faulty, LostAnswer
from workers.conformance.report import Broken, Check, Report, run_checks
from workers.custom import Ignored, Provisioner, ProvisionError, ProvisionOptions, ProvisionResult
from workers.translate import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.custom.api import JsonObject

PARALLEL: Final = 4
_NO_SOURCES: Final = frozenset(
    {"capacity", "accessModes", "claimRef", "persistentVolumeReclaimPolicy", "storageClassName",
     "mountOptions", "volumeMode", "nodeAffinity", "volumeAttributesClassName"}
)  # fmt: skip


@dataclass(slots=True)
class Bench:
    """The plug-in under test during one check."""

    make: Callable[[], Provisioner]
    parameters: Mapping[str, str]
    made: list[JsonObject] = field(default_factory=list)

    def options(self, name: str = "", **fields: Any) -> ProvisionOptions:
        """Return a request like the one that the engine builds."""
        uid = uuid.uuid4().hex
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"claim-{uid[:8]}", "namespace": "conformance", "uid": uid},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "conformance",
                "volumeMode": "Filesystem",
            },
        }
        storage_class = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "conformance", "uid": "class"},
            "provisioner": self.make().name,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
            "parameters": dict(self.parameters),
        }
        values: dict[str, Any] = {
            "storage_class": storage_class,
            "pv_name": name or f"pvc-{uid}",
            "claim": claim,
        }
        return ProvisionOptions(**(values | fields))

    def provision(self, options: ProvisionOptions) -> JsonObject:
        """Provision with a new instance; return the PV as the engine would complete it."""
        result = self.make().provision(deepcopy(options))
        if not isinstance(result, ProvisionResult):
            raise Broken(f"provision returned {type(result).__name__}, not ProvisionResult")
        volume = self.completed(options, result)
        self.made.append(volume)
        return volume

    def completed(self, options: ProvisionOptions, result: ProvisionResult) -> JsonObject:
        """Return the PV with the fields that the engine adds and that `delete` can read."""
        volume = deepcopy(result.volume)
        metadata = volume.setdefault("metadata", {})
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            "pv.kubernetes.io/provisioned-by": options.storage_class["provisioner"],
        }
        claim = options.claim["metadata"]
        volume.setdefault("spec", {})["claimRef"] = {
            key: claim[key] for key in ("namespace", "name", "uid")
        }
        return volume

    def delete(self, volume: JsonObject) -> None:
        """Delete a volume with a new instance."""
        self.make().delete(deepcopy(volume))


def shape(bench: Bench) -> None:
    """The API server would accept the returned PV."""
    options = bench.options()
    volume = bench.provision(options)
    if volume["metadata"].get("name") != options.pv_name:
        raise Broken(f"the PV is named {volume['metadata'].get('name')!r}, not options.pv_name")
    spec = volume["spec"]
    given = str((spec.get("capacity") or {}).get("storage", "0"))
    if quantity.parse(given) < quantity.parse(options.requested_size):
        raise Broken(f"the PV has {given}, but the claim requests {options.requested_size}")
    if not spec.get("accessModes"):
        raise Broken("the PV has no access modes")
    found = sorted(set(spec) - _NO_SOURCES)
    if len(found) != 1:
        raise Broken(f"the PV must have one volume source, not {found or 'none'}")
    policy = spec.get("persistentVolumeReclaimPolicy")
    if policy != options.storage_class["reclaimPolicy"]:
        raise Broken(f"the PV's reclaim policy is {policy}, but the class specifies Delete")


def inputs(bench: Bench) -> None:
    """The plug-in does not change the objects that it is given."""
    options = bench.options()
    before = deepcopy(options)
    volume = bench.completed(options, bench.make().provision(options))
    bench.made.append(volume)
    if options != before:
        raise Broken("provision changed the claim or the class that was passed to it")
    volume_before = deepcopy(volume)
    bench.make().delete(volume)
    if volume != volume_before:
        raise Broken("delete changed the volume that was passed to it")


def repeat(bench: Bench) -> None:
    """Two instances that provision the same claim return the same volume."""
    options = bench.options()
    _same(bench.provision(options), bench.provision(options), "a repeated provision call")


def lost_answer(bench: Bench) -> None:
    """If a process dies after doing the work, the next instance finds the volume."""
    options = bench.options()
    lossy = Faulty(bench.provision, lose_answers=1)
    with contextlib.suppress(LostAnswer):
        lossy(options)
    _same(bench.made[0], lossy(options), "provision after a lost response")


def concurrent(bench: Bench) -> None:
    """Concurrent calls return the same volume.

    Two workers may provision at the same time after one of them has lost its lease.
    """
    options = bench.options()

    def attempt(_: int) -> JsonObject | None:
        try:
            return bench.provision(options)
        except ProvisionError:
            return None

    with ThreadPoolExecutor(PARALLEL) as pool:
        found = [one for one in pool.map(attempt, range(PARALLEL)) if one is not None]
    final = bench.provision(options)
    for one in found:
        _same(one, final, "provision at the same time")


def two_claims(bench: Bench) -> None:
    """Two different claims get two different volumes."""
    one, two = bench.provision(bench.options()), bench.provision(bench.options())
    if _source(one) == _source(two):
        raise Broken(f"two claims share the same storage: {_source(one)}")


def delete_repeat(bench: Bench) -> None:
    """A repeated deletion succeeds."""
    volume = bench.provision(bench.options())
    bench.delete(volume)
    bench.delete(volume)


def delete_never_made(bench: Bench) -> None:
    """After its volume was deleted, a claim can be provisioned again with the same result."""
    options = bench.options()
    volume = bench.provision(options)
    bench.delete(volume)
    again = bench.provision(options)
    _same(volume, again, "provision after a deletion")


def bad_class(bench: Bench) -> None:
    """A user's mistake in the class raises ProvisionError or Ignored, no other exception."""
    options = bench.options()
    options.storage_class["parameters"] = {"no-such-parameter": "\x00"}
    try:
        volume = bench.completed(options, bench.make().provision(options))
    except (ProvisionError, Ignored):
        return
    except Exception as error:  # noqa: BLE001 - any other exception is a finding
        raise Broken(
            f"a class with a wrong parameter led to {type(error).__name__}: {error}"
        ) from None
    bench.made.append(volume)


def _source(volume: JsonObject) -> JsonObject:
    return {key: value for key, value in volume["spec"].items() if key not in _NO_SOURCES}


def _same(first: JsonObject, second: JsonObject, what: str) -> None:
    if first != second:
        raise Broken(f"{what} returned two different PVs: {_source(first)} and {_source(second)}")


_LEAK: Final = (
    "Any attempt may be repeated, even by a different process; with this provisioner, that leaks a "
    "volume"
)
CHECKS: Final[tuple[Check[Bench], ...]] = (
    Check("pv-shape", "The API server or the PV controller would reject the PV", shape),
    Check("inputs-unchanged", "csi-fleet continues to use these objects", inputs),
    Check("provision-repeat", _LEAK, repeat),
    Check("provision-lost-answer", _LEAK, lost_answer),
    Check("provision-concurrent", _LEAK, concurrent),
    Check("provision-two-claims", "Two claims would share their data", two_claims),
    Check("delete-repeat", "A deletion is retried until it succeeds", delete_repeat),
    Check("delete-then-provision", "A retried claim would not get its volume", delete_never_made),
    Check(
        "wrong-class",
        "Other exceptions are retried indefinitely, as if the operation were still in progress",
        bad_class,
    ),
)


def check_provisioner(
    make: Callable[[], Provisioner], *, parameters: Mapping[str, str] | None = None
) -> Report:
    """Run all checks on a plug-in; everything that the checks create is deleted.

    Args:
        make: creates a provisioner; it is called often, as if processes were restarted.
        parameters: the parameters of the StorageClass.
    """
    checks = [Check(one.name, one.why, _cleaned(one)) for one in CHECKS]
    return run_checks(checks, f"provisioner {make().name}", lambda: Bench(make, parameters or {}))


def _cleaned(check: Check[Bench]) -> Callable[[Bench], None]:
    def run(bench: Bench) -> None:
        try:
            check.run(bench)
        finally:
            for volume in bench.made:
                try:
                    bench.delete(volume)
                except Exception:  # noqa: BLE001, S112 - the checks of delete report it
                    continue

    return run
