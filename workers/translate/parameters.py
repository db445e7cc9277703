"""Separates class parameters for the driver from those for the provisioner.

Parameters are never changed in place (P-128): every function returns new values, sorted by key.
Source: external-provisioner, pkg/controller/controller.go getFSType, removePrefixedParameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.constants import PARAMETER_PREFIX
from workers.errors import AttemptError, State
from workers.translate.fields import Json, text

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIXED_FSTYPE: Final = f"{PARAMETER_PREFIX}fstype"

SECRET_STEMS: Final = (
    "secret",
    "provisioner-secret",
    "controller-publish-secret",
    "node-stage-secret",
    "node-publish-secret",
    "controller-expand-secret",
    "node-expand-secret",
    "controller-modify-secret",
)
"""The base names of reserved secret keys, which end in `-name` or `-namespace` (P-126, P-132)."""

RESERVED: Final = frozenset(
    [PREFIXED_FSTYPE]
    + [f"{PARAMETER_PREFIX}{stem}-name" for stem in SECRET_STEMS]
    + [f"{PARAMETER_PREFIX}{stem}-namespace" for stem in SECRET_STEMS],
)
"""Every key with the reserved prefix that is allowed in a class (P-126)."""

DEPRECATED: Final = {
    "fstype": PREFIXED_FSTYPE,
    "csiProvisionerSecretName": f"{PARAMETER_PREFIX}provisioner-secret-name",
    "csiProvisionerSecretNamespace": f"{PARAMETER_PREFIX}provisioner-secret-namespace",
    "csiControllerPublishSecretName": f"{PARAMETER_PREFIX}controller-publish-secret-name",
    "csiControllerPublishSecretNamespace": f"{PARAMETER_PREFIX}controller-publish-secret-namespace",
    "csiNodeStageSecretName": f"{PARAMETER_PREFIX}node-stage-secret-name",
    "csiNodeStageSecretNamespace": f"{PARAMETER_PREFIX}node-stage-secret-namespace",
    "csiNodePublishSecretName": f"{PARAMETER_PREFIX}node-publish-secret-name",
    "csiNodePublishSecretNamespace": f"{PARAMETER_PREFIX}node-publish-secret-namespace",
}
"""Deprecated key -> the key to use instead (P-131, P-132)."""


def fstype(parameters: Mapping[str, str], default: str = "") -> str:
    """Return the file system type to request; "" if none is given (P-125).

    Args:
        parameters: the parameters of the class; `fstype` matches in any letter case, the
            prefixed key exactly.
        default: `--default-fstype`, used if the parameters contain no type or an empty one.

    Raises:
        AttemptError: Finished; more than one key names a file system.
    """
    found = [
        value
        for key, value in parameters.items()
        if key == PREFIXED_FSTYPE or key.lower() == "fstype"
    ]
    if len(found) > 1:
        raise AttemptError(
            f'fstype specified in parameters with both "fstype" and "{PREFIXED_FSTYPE}" keys',
            State.FINISHED,
        )
    return (found[0] if found else "") or default


def strip(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters for the driver: all but the reserved keys (P-126).

    Raises:
        AttemptError: Finished; a key has the reserved prefix but is unknown. The first such key by
            name is reported; csi-provisioner reports a random one (D-026).
    """
    kept = {}
    for key in sorted(parameters):
        if not key.startswith(PARAMETER_PREFIX):
            kept[key] = parameters[key]
        elif key not in RESERVED:
            raise AttemptError(
                "failed to strip CSI Parameters of prefixed keys: found unknown parameter key "
                f'"{key}" with reserved namespace {PARAMETER_PREFIX}',
                State.FINISHED,
            )
    return kept


def extra_metadata(claim: Json, volume_name: str) -> dict[str, str]:
    """Return the parameters that `--extra-create-metadata` adds after stripping (P-127)."""
    return {
        f"{PARAMETER_PREFIX}pvc/name": text(claim, "metadata", "name"),
        f"{PARAMETER_PREFIX}pvc/namespace": text(claim, "metadata", "namespace"),
        f"{PARAMETER_PREFIX}pv/name": volume_name,
    }


def deprecations(parameters: Mapping[str, str]) -> list[str]:
    """Return a log line for each deprecated key in use; no event is written (P-131)."""
    return [
        f'"{old}" is deprecated and will be removed in a future release, please use "{new}" instead'
        for old, new in DEPRECATED.items()
        if old in parameters
    ]
