"""Collects the Secrets that workers must read, from classes and volumes, for `secret-roles`.

Classes name Secrets with templates. RBAC cannot express a template, so access has to be wider. If a
Secret's name depends on the claim, all Secrets of the namespace are included. If its namespace
depends on the claim, the namespaces that currently have such claims are included. Volumes and
snapshot contents keep the names that their class gave when they were created. Secrets that only the
kubelet reads (node stage, publish, expand) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from workers.constants import (
    ANN_DELETION_SECRET_NAME,
    ANN_DELETION_SECRET_NAMESPACE,
    ANN_GROUP_SECRET_NAME,
    ANN_GROUP_SECRET_NAMESPACE,
    ANN_MODIFY_SECRET_NAME,
    ANN_MODIFY_SECRET_NAMESPACE,
    ANN_SNAPSHOT_SECRET_NAME,
    ANN_SNAPSHOT_SECRET_NAMESPACE,
)
from workers.errors import AttemptError
from workers.translate.fields import Json, annotations_of, text, text_map
from workers.translate.secrets import SecretKind, expand
from workers.translate.snapshot_secrets import SecretUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OURS: Final = (
    SecretKind.PROVISIONER,
    SecretKind.CONTROLLER_PUBLISH,
    SecretKind.CONTROLLER_EXPAND,
    SecretKind.CONTROLLER_MODIFY,
    SecretKind.DEFAULT,
)
_ANNOTATIONS: Final = (
    (ANN_DELETION_SECRET_NAME, ANN_DELETION_SECRET_NAMESPACE),
    (ANN_MODIFY_SECRET_NAME, ANN_MODIFY_SECRET_NAMESPACE),
    (ANN_SNAPSHOT_SECRET_NAME, ANN_SNAPSHOT_SECRET_NAMESPACE),
    (ANN_GROUP_SECRET_NAME, ANN_GROUP_SECRET_NAMESPACE),
)
_REFERENCES: Final = ("controllerPublishSecretRef", "controllerExpandSecretRef")
# The template variables for the namespace of the claim or snapshot.
_NAMESPACES: Final = ("pvc.namespace", "volumesnapshot.namespace", "volumegroupsnapshot.namespace")


@dataclass(slots=True)
class Places:
    """The Secrets that workers must read, by namespace.

    Attributes:
        names: the Secret names by namespace, without the namespaces in `whole`.
        whole: the namespaces in which any Secret may be needed.
        open: a line for each class whose namespaces are not all known in advance.
        drivers: the drivers of all classes, even of classes without Secrets.
    """

    names: dict[str, set[str]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    open: list[str] = field(default_factory=list)
    drivers: set[str] = field(default_factory=set)

    def add(self, namespace: str, name: str | None) -> None:
        """Add one Secret, or all Secrets of the namespace if `name` is None."""
        if name is None:
            self.whole.add(namespace)
            self.names.pop(namespace, None)
        elif namespace not in self.whole:
            self.names.setdefault(namespace, set()).add(name)

    def add_class(self, what: str, parameters: Json, namespaces: Iterable[str]) -> None:
        """Add the Secrets that a class names.

        Args:
            what: a string that names the class, for `open`.
            parameters: the parameters of the class.
            namespaces: the namespaces that currently have claims (or snapshots) of the class.
        """
        for name, namespace in dict.fromkeys(_templates(parameters)):
            fixed_name, place = _fixed(name), _fixed(namespace)
            if place is not None:
                self.add(place, fixed_name)
                continue
            self.open.append(f"{what} takes the namespace from {namespace}")
            for one in namespaces:
                try:
                    self.add(expand(namespace, dict.fromkeys(_NAMESPACES, one)), fixed_name)
                except AttemptError:
                    break

    def add_object(self, item: Json) -> None:
        """Add the Secrets that a volume or a snapshot content names."""
        found = annotations_of(item)
        pairs = [(found.get(name, ""), found.get(place, "")) for name, place in _ANNOTATIONS]
        pairs += [
            (text(item, "spec", "csi", ref, "name"), text(item, "spec", "csi", ref, "namespace"))
            for ref in _REFERENCES
        ]
        for name, namespace in pairs:
            if name and namespace:
                self.add(namespace, name)


def _templates(parameters: Json) -> Iterator[tuple[str, str]]:
    known = text_map(parameters)
    for kind in _OURS:
        names = [known[key] for key in kind.keys("name") if known.get(key)]
        namespaces = [known[key] for key in kind.keys("namespace") if known.get(key)]
        yield from ((name, namespace) for name in names for namespace in namespaces)
    for use in SecretUse:
        name, namespace = (known.get(use.key(part), "") for part in ("name", "namespace"))
        if name and namespace:
            yield name, namespace


def _fixed(template: str) -> str | None:
    """Return a template that has no variables as it is; None if it has variables."""
    try:
        return expand(template, {})
    except AttemptError:
        return None
