"""Resolves the secrets that class parameters name, and decodes them.

References are resolved from templates in the class parameters (P-132 to P-136). Namespace templates
deliberately have fewer variables than name templates: users control claim names and annotations,
and must not be able to choose the namespace of a secret. Secret values never appear in a message.
Source: external-provisioner, pkg/controller/controller.go getSecretReference; Go, os.Expand.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final

from workers.constants import PARAMETER_PREFIX
from workers.errors import AttemptError, State
from workers.translate.fields import Json, annotations_of, text, text_map
from workers.translate.go_text import quote, quote_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_DNS_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_MAX_LABEL: Final = 63
_MAX_SUBDOMAIN: Final = 253

# As in Go's os.Expand: `${name}`; `${` or `${}` (dropped); a one-character name; a plain name.
# After the last `}`, no `${` can be closed; a separate pattern for that part keeps the time linear
# even for hostile templates.
_UNBRACED: Final = r"(?P<swallowed>\{\}?)|(?P<special>[*#$@!?\-0-9])|(?P<plain>[A-Za-z0-9_]+)"
_VARIABLE: Final = re.compile(rf"\$(?:\{{(?P<braced>[^}}]+)\}}|{_UNBRACED})")
_VARIABLE_IN_TAIL: Final = re.compile(rf"\$(?:(?P<braced>(?!))|{_UNBRACED})")


class SecretKind(Enum):
    """What a secret is used for.

    Each value consists of the name to show in messages, the base name of the parameter keys, and
    the base name of the deprecated keys.
    """

    PROVISIONER = ("Provisioner", "provisioner-secret", "csiProvisionerSecret")
    CONTROLLER_PUBLISH = (
        "ControllerPublish",
        "controller-publish-secret",
        "csiControllerPublishSecret",
    )
    NODE_STAGE = ("NodeStage", "node-stage-secret", "csiNodeStageSecret")
    NODE_PUBLISH = ("NodePublish", "node-publish-secret", "csiNodePublishSecret")
    CONTROLLER_EXPAND = ("ControllerExpand", "controller-expand-secret", "")
    NODE_EXPAND = ("NodeExpand", "node-expand-secret", "")
    CONTROLLER_MODIFY = ("ControllerModify", "controller-modify-secret", "")
    DEFAULT = ("Default", "secret", "")

    @cache
    def keys(self, part: str) -> tuple[str, ...]:
        """Return the parameter keys for `part`, which is `name` or `namespace`."""
        _, stem, deprecated = self.value
        prefixed = f"{PARAMETER_PREFIX}{stem}-{part}"
        return (f"{deprecated}{part.capitalize()}", prefixed) if deprecated else (prefixed,)


_KEYS: Final = frozenset(
    key for kind in SecretKind for part in ("name", "namespace") for key in kind.keys(part)
)


@dataclass(frozen=True, slots=True)
class SecretRef:
    """The namespace and name of a secret; both are valid Kubernetes names."""

    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class VolumeSecrets:
    """The secret references of a PV, for later calls; None for a use without a secret."""

    controller_publish: SecretRef | None = None
    node_stage: SecretRef | None = None
    node_publish: SecretRef | None = None
    controller_expand: SecretRef | None = None
    node_expand: SecretRef | None = None
    controller_modify: SecretRef | None = None


def _fail(message: str) -> AttemptError:
    return AttemptError(message, State.NO_CHANGE)


def _templates(kind: SecretKind, parameters: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and namespace templates for one use; None if there are none (P-133)."""
    title = kind.value[0]
    names = [parameters[key] for key in kind.keys("name") if key in parameters]
    namespaces = [parameters[key] for key in kind.keys("namespace") if key in parameters]
    if len(names) > 1 or len(namespaces) > 1:
        raise _fail(
            f'{title} secrets specified in parameters with both "csi" and '
            f'"{PARAMETER_PREFIX}" keys',
        )
    if len(names) != len(namespaces):
        raise _fail(
            f"either name and namespace for {title} secrets specified, Both must be specified",
        )
    if not names:
        return None
    if not names[0] or not namespaces[0]:
        raise _fail(
            f"{title} secrets specified in parameters but value of either namespace or name is "
            "empty",
        )
    return names[0], namespaces[0]


def _templates_or_default(
    kind: SecretKind, parameters: Mapping[str, str]
) -> tuple[str, str] | None:
    if _KEYS.isdisjoint(parameters):  # quick path for most classes: called for seven kinds in turn
        return None
    for source, word in ((kind, ""), (SecretKind.DEFAULT, "default ")):
        try:
            found = _templates(source, parameters)
        except AttemptError as error:
            raise _fail(
                f"failed to get {word}name and namespace template from params: {error.message}",
            ) from error
        if found is not None:
            return found
    return None


def expand(template: str, variables: Mapping[str, str]) -> str:
    """Replace the variables of a template, as a shell does, in one pass (P-135).

    Worked example: `a-${x}-$y-${}$.` with x=1, y=2 -> `a-1-2-$.`; results are not expanded again.

    Raises:
        AttemptError: NoChange; a variable is unknown. The error lists all unknown variables.
    """
    unknown: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        if match["swallowed"] is not None:
            return ""
        name = match["braced"] or match["special"] or match["plain"]
        if name not in variables:
            unknown.add(name)
        return variables.get(name, "")

    tail = template.rfind("}") + 1
    result = _VARIABLE.sub(replace, template[:tail])
    result += _VARIABLE_IN_TAIL.sub(replace, template[tail:])
    if unknown:
        tokens = quote_list(sorted(unknown))
        raise _fail(f"error resolving value {quote(template)}: invalid tokens: {tokens}")
    return result


def _is_label(value: str) -> bool:
    return len(value) <= _MAX_LABEL and _DNS_LABEL.fullmatch(value) is not None


def _is_subdomain(value: str) -> bool:
    return len(value) <= _MAX_SUBDOMAIN and _DNS_SUBDOMAIN.fullmatch(value) is not None


def _resolve_part(
    template: str, variables: Mapping[str, str], is_valid: Callable[[str], bool], what: str
) -> str:
    value = expand(template, variables)
    if is_valid(value):
        return value
    if value == template:
        raise _fail(f"{quote(value)} is not a valid {what}")
    raise _fail(f"{quote(template)} resolved to {quote(value)} which is not a valid {what}")


def resolve(
    kind: SecretKind, parameters: Mapping[str, str], volume_name: str, claim: Json
) -> SecretRef | None:
    """Return the secret for one use, from its own or the default keys; None if unset (P-133).

    Args:
        kind: what the secret is used for.
        parameters: the parameters of the class, unstripped.
        volume_name: the value of `${pv.name}` (P-121).
        claim: the claim; for a deletion, `{"metadata": {namespace, name}}` from the claimRef.

    Raises:
        AttemptError: NoChange; keys are incomplete, a variable is unknown (P-135) or the result
            is not a valid name (P-136; the namespace is checked first).
    """
    templates = _templates_or_default(kind, parameters)
    if templates is None:
        return None
    variables = {
        "pv.name": volume_name,
        "pvc.namespace": text(claim, "metadata", "namespace"),
    }
    more = {"pvc.name": text(claim, "metadata", "name")}
    for key, value in annotations_of(claim).items():
        more[f"pvc.annotations['{key}']"] = value
    return resolve_parts(*templates, namespace_variables=variables, more_for_name=more)


def resolve_parts(
    name_template: str,
    namespace_template: str,
    *,
    namespace_variables: Mapping[str, str],
    more_for_name: Mapping[str, str],
) -> SecretRef:
    """Resolve both templates of a secret, the namespace first (P-135, P-136).

    Args:
        name_template: the template of the secret's name.
        namespace_template: the template of its namespace.
        namespace_variables: the variables for both templates.
        more_for_name: additional variables for the name.

    Raises:
        AttemptError: NoChange; a variable is unknown or a result is not a valid name.
    """
    namespace = _resolve_part(namespace_template, namespace_variables, _is_label, "namespace name")
    variables = {**namespace_variables, **more_for_name}
    return SecretRef(
        _resolve_part(name_template, variables, _is_subdomain, "secret name"), namespace
    )


def resolve_volume_secrets(
    parameters: Mapping[str, str], volume_name: str, claim: Json
) -> VolumeSecrets:
    """Resolve the secret references of a PV, in upstream's order (P-101 step 19).

    Whether these secrets exist is not checked (P-137).

    Raises:
        AttemptError: NoChange; a secret cannot be resolved, as for `resolve`. The first such
            secret is reported.
    """

    def ref(kind: SecretKind) -> SecretRef | None:
        return resolve(kind, parameters, volume_name, claim)

    return VolumeSecrets(
        controller_publish=ref(SecretKind.CONTROLLER_PUBLISH),
        node_stage=ref(SecretKind.NODE_STAGE),
        node_publish=ref(SecretKind.NODE_PUBLISH),
        controller_expand=ref(SecretKind.CONTROLLER_EXPAND),
        node_expand=ref(SecretKind.NODE_EXPAND),
        controller_modify=ref(SecretKind.CONTROLLER_MODIFY),
    )


def read_failed(ref: SecretRef, error: object) -> AttemptError:
    """Return the error for a provisioner secret that could not be read (P-137)."""
    return _fail(f"error getting secret {ref.name} in namespace {ref.namespace}: {error}")


def decode(secret: Json, ref: SecretRef) -> dict[str, str]:
    """Return a secret's data as strings, for the `secrets` field of a request (P-137).

    Raises:
        AttemptError: NoChange; a value is not base64 or not UTF-8 (D-033: gRPC's error would name
            neither the secret nor the key). The value itself is never shown.
    """
    decoded = {}
    for key, value in text_map(secret, "data").items():
        problem = ""
        try:
            decoded[key] = base64.b64decode(value, validate=True).decode("utf-8")
        except UnicodeDecodeError:
            problem = "UTF-8"
        except (binascii.Error, ValueError):
            problem = "base64"
        if problem:  # raised outside `except`, because the caught error contains the value
            raise _fail(f"secret {ref.namespace}/{ref.name} key {key} is not valid {problem}")
    return decoded
