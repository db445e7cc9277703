"""The feature gates, and which of them are on.

A `FeatureGates` object is immutable; discovery at startup returns a new one. Gates that upstream
gets only from the API server library are accepted but have no effect. Spec: F-003, P-700, P-703.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from workers.config.spelling import meant
from workers.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

TOPOLOGY: Final = "Topology"
CROSS_NAMESPACE: Final = "CrossNamespaceVolumeDataSource"
VOLUME_ATTRIBUTES_CLASS: Final = "VolumeAttributesClass"
RELEASE_LEADER: Final = "ReleaseLeaderElectionOnExit"
SNAPSHOT_TOPOLOGY: Final = "VolumeSnapshotTopology"

_ALL_ALPHA: Final = "AllAlpha"
_ALL_BETA: Final = "AllBeta"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")

VAC_OFF_MESSAGE: Final = (
    "Disabling VolumeAttributesClass feature gate because the VolumeAttributesClass v1 API "
    "is not available"
)


@dataclass(frozen=True, slots=True)
class GateSpec:
    """One gate: its name, its stage (`GA` or `ALPHA`), its default and its effect."""

    name: str
    stage: str
    default: bool
    effect: str


COMMON_GATES: Final = (
    GateSpec(
        RELEASE_LEADER,
        "ALPHA",
        default=False,
        effect="Finish the running work, then release the Lease.",
    ),
)
"""Gates that every sidecar has."""

PROVISIONER_GATES: Final = (
    GateSpec(
        CROSS_NAMESPACE,
        "ALPHA",
        default=False,
        effect="Accept a data source in another namespace (`dataSourceRef.namespace`) if a "
        "ReferenceGrant allows it.",
    ),
    GateSpec(TOPOLOGY, "GA", default=True, effect="Support topology, if the driver does."),
    GateSpec(
        VOLUME_ATTRIBUTES_CLASS,
        "GA",
        default=True,
        effect="Send the parameters of a claim's VolumeAttributesClass to the driver as mutable "
        "parameters.",
    ),
    GateSpec(
        SNAPSHOT_TOPOLOGY,
        "ALPHA",
        default=False,
        effect="Restore a snapshot with immediate binding only where its content's `nodeAffinity` "
        "allows it.",
    ),
)
KNOWN_GATES: Final = (*COMMON_GATES, *PROVISIONER_GATES)


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The values of the feature gates."""

    topology: bool = True
    """Topology of claims and volumes, if the driver has that capability too; on by default."""

    cross_namespace_volume_data_source: bool = False
    """Data sources in other namespaces, allowed by a ReferenceGrant; off by default."""

    volume_attributes_class: bool = True
    """VolumeAttributesClasses supply mutable parameters; on by default, see `with_discovery`."""

    volume_snapshot_topology: bool = False
    """Restores are limited to the topology of the snapshot content; off by default."""

    release_leader_election_on_exit: bool = False
    """On a signal, finish running reconciles and release the Lease; off by default."""

    explicit: frozenset[str] = frozenset()
    """The names of gates set on the command line; discovery does not change them."""

    def with_discovery(self, *, attributes_class_served: bool | None) -> FeatureGates:
        """Switch VolumeAttributesClass off if the cluster does not serve that kind (P-703).

        Args:
            attributes_class_served: True if `storage.k8s.io/v1` has the kind; None if discovery
                failed, in which case nothing changes.

        Returns:
            The gates to use. If the object is a new one, the caller logs `VAC_OFF_MESSAGE`.
        """
        keep = (
            attributes_class_served is not False
            or VOLUME_ATTRIBUTES_CLASS in self.explicit
            or not self.volume_attributes_class
        )
        return self if keep else replace(self, volume_attributes_class=False)


def gate_values(requested: Mapping[str, bool], specs: Collection[GateSpec]) -> dict[str, bool]:
    """Return the values of one controller's gates, by name."""
    values = {spec.name: spec.default for spec in specs}
    if _ALL_ALPHA in requested:
        values |= {spec.name: requested[_ALL_ALPHA] for spec in specs if spec.stage == "ALPHA"}
    return values | {name: value for name, value in requested.items() if name in values}


def build_gates(
    requested: Mapping[str, bool], specs: Sequence[GateSpec] = KNOWN_GATES
) -> tuple[FeatureGates, list[str]]:
    """Turn the values of `--feature-gates` into gates and warnings.

    Args:
        requested: the given values.
        specs: the gates of all controllers that run.

    Raises:
        ConfigError: there is no gate with one of these names. The exit code is 255, because
            upstream treats this as fatal.
    """
    values = gate_values(requested, list({s.name: s for s in (*KNOWN_GATES, *specs)}.values()))
    stages = {spec.name: spec.stage for spec in specs}
    warnings: list[str] = []
    for name, value in requested.items():
        if name in stages:
            if stages[name] == "GA":
                warnings.append(_ga_warning(name, value=value))
        elif not _NAME.fullmatch(name):
            raise ConfigError(f"unrecognized feature gate: {name}", exit_code=255)
        elif name not in {_ALL_ALPHA, _ALL_BETA}:
            hint = meant(name, stages)
            text = f"feature gate {name} has no effect in csi-fleet and is ignored"
            warnings.append(f"{text};{hint}" if hint else text)
    gates = FeatureGates(
        topology=values[TOPOLOGY],
        cross_namespace_volume_data_source=values[CROSS_NAMESPACE],
        volume_attributes_class=values[VOLUME_ATTRIBUTES_CLASS],
        volume_snapshot_topology=values[SNAPSHOT_TOPOLOGY],
        release_leader_election_on_exit=values[RELEASE_LEADER],
        explicit=frozenset(requested),
    )
    return gates, warnings


def _ga_warning(name: str, *, value: bool) -> str:
    return (
        f"setting GA feature gate {name}={str(value).lower()}: "
        "it will be removed in a future release"
    )
