"""Finds the containers of a driver's pod that a csi-fleet controller can replace.

The containers' arguments are read as the kubelet passes them to the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.controllers import catalogue
from workers.kube import paths

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.spec import Spec

# Variables as the kubelet parses them: `$$` represents a dollar sign.
VARIABLE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")
_ELECTS: Final = "leader-election"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A container of the driver's pod that a csi-fleet controller can replace."""

    spec: Spec
    pod: JsonObject
    container: JsonObject

    @property
    def place(self) -> str:
        """The namespace, pod and container, for messages."""
        metadata = self.pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}, container {self.container['name']}"

    def environment(self) -> dict[str, str | None]:
        """The variables of the container; None for a value that the pod does not contain."""
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        status = self.pod.get("status") or {}
        fields = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata.get("uid") or "",
            "spec.nodeName": spec.get("nodeName") or "",
            "spec.serviceAccountName": spec.get("serviceAccountName") or "",
            "status.podIP": status.get("podIP") or "",
            "status.hostIP": status.get("hostIP") or "",
        }
        found: dict[str, str | None] = {}
        for one in self.container.get("env") or ():
            if source := one.get("valueFrom"):
                path = (source.get("fieldRef") or {}).get("fieldPath")
                found[str(one["name"])] = fields.get(str(path))
            else:
                found[str(one["name"])] = self._expanded(one.get("value") or "", found)
        return found

    def _expanded(self, text: str, known: dict[str, str | None]) -> str | None:
        """Expand variables as the kubelet does; None if a value is unknown."""
        is_elsewhere = bool(self.container.get("envFrom"))
        for name in filter(None, VARIABLE.findall(text)):
            if (known[name] is None) if name in known else is_elsewhere:
                return None
        found = {name: value for name, value in known.items() if value is not None}
        return VARIABLE.sub(lambda m: "$" if m[1] is None else found.get(m[1], m[0]), text)

    def given(self) -> list[str]:
        """The container's arguments, not expanded."""
        words = [*(self.container.get("command") or [])[1:], *(self.container.get("args") or [])]
        return [str(one) for one in words]

    def arguments(self) -> list[str]:
        """The arguments as the process receives them, except those with an unknown variable."""
        return self._divided()[0]

    def unknown(self) -> list[str]:
        """The arguments with a variable whose value is unknown, such as one from a ConfigMap."""
        return self._divided()[1]

    def _divided(self) -> tuple[list[str], list[str]]:
        """Return the known and the unknown arguments.

        A flag whose value is a separate word is kept together with that word.
        """
        environment, known, unknown = self.environment(), list[str](), list[str]()
        for word in self.given():
            value = self._expanded(word, environment)
            if value is not None:
                known.append(value)
                continue
            is_split = not word.startswith("-") and known and re.fullmatch("-+[^=]+", known[-1])
            unknown.append(f"{known.pop()} {word}" if is_split else word)
        return known, unknown

    def works_alone(self) -> bool | None:
        """Return True for a Go sidecar without leader election; None if unknown."""
        has_ended = (self.pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if has_ended or self.is_ours():
            return False
        if any(_flag(one)[0] == _ELECTS for one in self.unknown()):
            return None
        flags = map(_flag, self.arguments())
        given = [value.lower() for name, value in flags if name == _ELECTS]
        return not given or given[-1] in {"false", "f", "0"}

    def is_ours(self) -> bool:
        """Return True if the container already runs csi-fleet, whatever its name."""
        command, image, _ = _programs(self.container)
        names = [one["name"] for one in self.container.get("env") or ()]
        words = self.container.get("args") or [""]
        return (
            any(one.startswith("csi-fleet") for one in (command, image))
            or any(one.startswith("CSI_FLEET_") for one in names)
            or catalogue.program(str(words[0])) is not None
            or any(_flag(str(one))[0] == "redis-url" for one in words)
        )


def sidecars(tools: Tools, place: str) -> list[Sidecar]:
    """Return the containers of a pod (`NAMESPACE/NAME`) that csi-fleet can replace.

    Raises:
        NotFoundError: there is no such pod.
        ApiError: the pod cannot be read.
    """
    namespace, _, name = place.partition("/")
    return sidecars_of(tools.kube.get(paths.PODS, name, namespace=namespace))


def sidecars_of(pod: JsonObject) -> list[Sidecar]:
    """Return the containers that csi-fleet can replace in a pod or a similar object."""
    lasting = (
        one
        for one in pod["spec"].get("initContainers") or ()
        if one.get("restartPolicy") == "Always"
    )
    found = []
    for container in (*pod["spec"]["containers"], *lasting):
        spec = next(filter(None, map(catalogue.program, _programs(container))), None)
        if spec is not None:
            found.append(Sidecar(spec, pod, container))
    return found


def _flag(word: str) -> tuple[str, str]:
    """Return the name and value of a flag; the value is "" if it is missing."""
    name, _, value = word.lstrip("-").partition("=")
    return name.partition(" ")[0], value


def _programs(container: JsonObject) -> list[str]:
    """Return names that may identify the program: those of the command, image and container."""
    command = (container.get("command") or [""])[0].rpartition("/")[2]
    image = container["image"].rpartition("/")[2].partition("@")[0].partition(":")[0]
    return [command, image, container["name"]]
