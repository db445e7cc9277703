"""Resolves the secrets that a snapshot class names, and strips its parameters for the driver.

The templates are those of StorageClasses (workers.translate.secrets), but without default and
deprecated keys. Nothing here reads a secret. Spec: SNA-020 to SNA-024.
Source: external-snapshotter v8.6, pkg/utils/util.go GetSecretReference, RemovePrefixedParameters.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from workers.constants import PARAMETER_PREFIX
from workers.errors import AttemptError, State
from workers.translate.secrets import SecretRef, resolve_parts

if TYPE_CHECKING:
    from collections.abc import Mapping


class SecretUse(Enum):
    """What a secret is used for: its name in messages, and the base name of its parameter keys."""

    SNAPSHOT = ("Snapshotter", "snapshotter-secret")
    LIST = ("SnapshotterList", "snapshotter-list-secret")
    GROUP = ("GroupSnapshotter", "group-snapshotter-secret")
    GROUP_GET = ("GroupSnapshotterGet", "group-snapshotter-get-secret")

    def key(self, part: str) -> str:
        """Return the parameter key for `part`, which is `name` or `namespace`."""
        return f"{PARAMETER_PREFIX}{self.value[1]}-{part}"


_SECRET_KEYS: Final = frozenset(
    use.key(part) for use in SecretUse for part in ("name", "namespace")
)

# The keys that `--extra-create-metadata` adds (SNA-022).
KEY_SNAPSHOT_NAME: Final = f"{PARAMETER_PREFIX}volumesnapshot/name"
KEY_SNAPSHOT_NAMESPACE: Final = f"{PARAMETER_PREFIX}volumesnapshot/namespace"
KEY_CONTENT_NAME: Final = f"{PARAMETER_PREFIX}volumesnapshotcontent/name"
KEY_GROUP_NAME: Final = f"{PARAMETER_PREFIX}volumegroupsnapshot/name"
KEY_GROUP_NAMESPACE: Final = f"{PARAMETER_PREFIX}volumegroupsnapshot/namespace"
KEY_GROUP_CONTENT_NAME: Final = f"{PARAMETER_PREFIX}volumegroupsnapshotcontent/name"


def _fail(message: str) -> AttemptError:
    return AttemptError(message, State.NO_CHANGE)


def _templates(use: SecretUse, parameters: Mapping[str, str]) -> tuple[str, str] | None:
    title = use.value[0]
    problem = ""
    name, namespace = (parameters.get(use.key(part)) for part in ("name", "namespace"))
    if name is None and namespace is None:
        return None
    if name is None or namespace is None:
        problem = f"either name and namespace for {title} secrets specified, Both must be specified"
    elif not name or not namespace:
        problem = (
            f"{title} secrets specified in parameters but value of either namespace or name is "
            "empty"
        )
    if problem:
        raise _fail(f"failed to get name and namespace template from params: {problem}")
    return name or "", namespace or ""


def resolve(
    use: SecretUse,
    parameters: Mapping[str, str],
    content_name: str,
    *,
    name: str | None = None,
    namespace: str | None = None,
) -> SecretRef | None:
    """Return the secret for one use; None if the class names none (SNA-020, SNA-023).

    Args:
        use: what the secret is used for; this determines which variables a template can have.
        parameters: the parameters of the class, unstripped.
        content_name: the name of the content or group content.
        name: the name of the snapshot or group snapshot; None if templates must not use it.
        namespace: the namespace of the snapshot or group snapshot.

    Raises:
        AttemptError: keys are incomplete, a variable is unknown, or the result is not a valid name.
    """
    templates = _templates(use, parameters)
    if templates is None:
        return None
    word = (
        "volumegroupsnapshot"
        if use in {SecretUse.GROUP, SecretUse.GROUP_GET}
        else ("volumesnapshot")
    )
    variables = {f"{word}content.name": content_name}
    if namespace is not None:
        variables[f"{word}.namespace"] = namespace
    more = {} if name is None else {f"{word}.name": name}
    return resolve_parts(*templates, namespace_variables=variables, more_for_name=more)


def strip(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters for the driver: all but the reserved keys (SNA-021).

    Raises:
        AttemptError: a key has the reserved prefix but is unknown.
    """
    kept = {}
    for key, value in parameters.items():
        if not key.startswith(PARAMETER_PREFIX):
            kept[key] = value
        elif key not in _SECRET_KEYS:
            raise _fail(
                f'found unknown parameter key "{key}" with reserved namespace {PARAMETER_PREFIX}'
            )
    return kept


def from_annotations(
    annotations: Mapping[str, str], name_key: str, namespace_key: str, what: str
) -> SecretRef | None:
    """Return the secret that annotations name; None unless both annotations are present (SNA-024).

    Args:
        annotations: the annotations of the content.
        name_key: the annotation with the secret's name.
        namespace_key: the annotation with the secret's namespace.
        what: the kind and name of the object for a message, such as `snapshot content "c"`.

    Raises:
        AttemptError: both annotations are present, but one of the values is empty.
    """
    if name_key not in annotations or namespace_key not in annotations:
        return None
    name, namespace = annotations[name_key], annotations[namespace_key]
    if not name or not namespace:
        raise _fail(
            f"cannot retrieve secrets for {what}, err: secret name or namespace not specified"
        )
    return SecretRef(name, namespace)
