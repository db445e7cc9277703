"""Checks whether the recipes of docs/recipes fit the charts of real drivers, in a copy of them.

    python -m tests.support.recipes FOLDER [--record]

FOLDER contains a work tree of each repository under its own name (`aws-ebs-csi-driver`, ...); a
missing one is reported and skipped. Of those charts, only each sidecar's arguments are kept here,
in `sidecar_arguments.yaml` (`--record` writes it), which the unit tests parse. For each chart:

- csi-fleet must accept the arguments of every sidecar that it replaces unchanged;
- with the recipe, every such container must run csi-fleet's image of its program, with the same
  arguments, and no other container or workload may run one of those Go programs;
- permissions that csi-fleet's controllers may need and the chart's account lacks are reported;
  csi-fleet's own roles (docs/migration.md) grant them.

The exit code is 1 if a check fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.helm import helm
from tests.support.kustomize import containers, pod_spec
from workers.__main__ import drop_in
from workers.cli.sidecars import Sidecar
from workers.config.load import parse
from workers.config.settings import Settings
from workers.controllers import catalogue
from workers.errors import ConfigError
from workers.spec import Spec

JsonObject = dict[str, Any]
RECIPES: Final = Path(__file__).resolve().parents[2] / "docs" / "recipes"
RECORDED: Final = Path(__file__).with_name("sidecar_arguments.yaml")
NAMESPACE: Final = "kube-system"
_WORKLOADS: Final = {"Deployment", "StatefulSet", "DaemonSet"}


@dataclass(frozen=True)
class Source:
    """Where a driver's manifests are.

    Attributes:
        path: a chart, or a file of objects, below FOLDER.
        recipe: file of docs/recipes: values of a chart, else a kustomization with images.
        values: the values that a user of all sidecars sets in any case.
        image_set: the ConfigMap from which an operator reads the sidecars' images.
    """

    path: str
    recipe: str
    values: JsonObject = field(default_factory=dict)
    image_set: str = ""

    @property
    def is_chart(self) -> bool:
        return not self.path.endswith(".yaml")


SOURCES: Final = {
    "AWS EBS": Source(
        "aws-ebs-csi-driver/charts/aws-ebs-csi-driver",
        "aws-ebs.yaml",
        {"sidecars": {"snapshotter": {"forceEnable": True}}},
    ),
    "Azure Disk": Source(
        "azuredisk-csi-driver/charts/latest/azuredisk-csi-driver",
        "azure-disk.yaml",
        {"snapshot": {"enabled": True}},
    ),
    "NFS": Source(
        "csi-driver-nfs/charts/latest/csi-driver-nfs",
        "nfs.yaml",
        {"externalSnapshotter": {"enabled": True}},
    ),
    "Ceph (Rook)": Source(
        "rook/deploy/charts/rook-ceph",
        "rook-ceph.yaml",
        {"csi": {"installCsiOperator": False}},
        image_set="rook-csi-operator-image-set-configmap",
    ),
    "GCE PD": Source(
        "gcp-compute-persistent-disk-csi-driver/deploy/kubernetes/base/controller/controller.yaml",
        "gce-pd.yaml",
    ),
    "host-path": Source(
        "csi-driver-host-path/deploy/kubernetes-latest/hostpath/csi-hostpath-plugin.yaml",
        "host-path.yaml",
    ),
}


def objects(source: Source, folder: Path, *, with_recipe: bool) -> list[JsonObject]:
    """Render the chart or the file to all its objects."""
    recipe: JsonObject = yaml.safe_load((RECIPES / source.recipe).read_text())
    path = folder / source.path
    if source.is_chart:
        values = merged(source.values, recipe) if with_recipe else source.values
        texts = helm().Chart.load(path).render(values, name="driver", namespace=NAMESPACE)
        documents = [text for name, text in texts.items() if name.endswith(".yaml")]
    else:
        documents = [one.read_text() for one in sorted(path.parent.glob("*.yaml"))]
    found = [one for text in documents for one in yaml.safe_load_all(text) if one and "kind" in one]
    if with_recipe and not source.is_chart:
        names = {one["name"]: f"{one['newName']}:{one['newTag']}" for one in recipe["images"]}
        for container in _containers(found):
            container["image"] = names.get(container["image"].partition(":")[0], container["image"])
    return found


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> JsonObject:
    """Merge values as Helm merges values files."""
    found = dict(values)
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else value
    return found


def sidecars(found: list[JsonObject]) -> dict[tuple[str, str], Sidecar]:
    """Return the containers with a sidecar's image that csi-fleet replaces, by workload and
    container name."""
    result = {}
    for item in found:
        if item["kind"] not in _WORKLOADS:
            continue
        for container in containers(item):
            spec = catalogue.program(_program(container["image"]))
            if spec is not None:
                pod = {"metadata": item["metadata"], "spec": pod_spec(item)}
                result[item["metadata"]["name"], container["name"]] = Sidecar(spec, pod, container)
    return result


def settings_of(program: str, arguments: list[str]) -> Settings:
    """Parse a sidecar's arguments with csi-fleet's program.

    Raises:
        ConfigError: it refuses them.
    """
    command, rest = drop_in([program, *arguments])
    return parse(command, rest, {})


def problems(source: Source, folder: Path) -> Iterator[str]:
    """Return the problems of the recipe."""
    before = objects(source, folder, with_recipe=False)
    after = objects(source, folder, with_recipe=True)
    if source.image_set:
        yield from _of_image_set(source.image_set, after)
        return
    ours = {
        (item["metadata"]["name"], container["name"]): container
        for item in after
        if item["kind"] in _WORKLOADS
        for container in containers(item)
    }
    found = sidecars(before)
    if not found:
        yield "no sidecar at all: has the chart moved?"
    for place, sidecar in found.items():
        name = " ".join(place)
        try:
            settings_of(sidecar.spec.program, sidecar.arguments())
        except ConfigError as error:
            yield f"{name}: {error}"
        container = ours.get(place, {})
        if container.get("image") != _our_image(sidecar.spec):
            yield f"{name}: the recipe leaves the image {container.get('image')}"
        given = Sidecar(sidecar.spec, sidecar.pod, container).arguments()
        if given[: len(sidecar.arguments())] != sidecar.arguments() and set(
            sidecar.arguments()
        ) - set(given):
            yield f"{name}: the recipe changes the arguments to {given}"
        try:
            settings_of(sidecar.spec.program, given)
        except ConfigError as error:
            yield f"{name} with the recipe: {error}"
    for place, sidecar in sidecars(after).items():
        yield f"{' '.join(place)}: still Go: {sidecar.container['image']}"


def lacking(found: list[JsonObject]) -> dict[str, list[str]]:
    """Return the permissions that the chart's account lacks, by program, from the rules in its
    manifests."""
    result = {}
    for sidecar in sidecars(found).values():
        account = sidecar.pod["spec"].get("serviceAccountName", "default")
        allowed = set(_granted(found, account))
        needed = {
            (rule.group, resource, verb)
            for rule in sidecar.spec.permissions
            for resource in rule.resources
            for verb in rule.verbs
        }
        result[sidecar.spec.program] = sorted(
            f"{verb} {resource}"
            for group, resource, verb in needed
            if not any(
                (g, r, v) in allowed
                for g in (group, "*")
                for r in (resource, "*")
                for v in (verb, "*")
            )
        )
    return result


def _granted(found: list[JsonObject], account: str) -> Iterator[tuple[str, str, str]]:
    rules = {
        (one["kind"], one["metadata"]["name"]): one.get("rules") or []
        for one in found
        if one["kind"] in {"ClusterRole", "Role"}
    }
    for binding in found:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        if not any(one["name"] == account for one in binding.get("subjects") or ()):
            continue
        for rule in rules.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]), []):
            for group in rule.get("apiGroups", []):
                for resource in rule.get("resources", []):
                    for verb in rule["verbs"]:
                        yield group, resource, verb


def _of_image_set(name: str, found: list[JsonObject]) -> Iterator[str]:
    images = next((one["data"] for one in found if one["metadata"]["name"] == name), None)
    if images is None:
        yield f"there is no ConfigMap {name}: has the chart moved?"
        return
    for spec in catalogue.SPECS:
        word = spec.program.removeprefix("csi-")
        if not spec.part_of and spec.needs_driver and images.get(word) != _our_image(spec):
            yield f"{name}: the recipe leaves {word} at {images.get(word)}"


def _our_image(spec: Spec) -> str:
    part = "" if spec.name == "provisioner" else f"-{spec.program}"
    return f"REG/csi-fleet{part}:V"


def _program(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _containers(found: list[JsonObject]) -> Iterator[JsonObject]:
    for item in found:
        if item["kind"] in _WORKLOADS:
            yield from containers(item)


def recorded() -> dict[str, dict[str, list[str]]]:
    """Return the arguments by driver and program, as they were last recorded."""
    found: dict[str, dict[str, list[str]]] = yaml.safe_load(RECORDED.read_text())
    return found


def main(words: list[str]) -> int:
    """Run the command of the module's docstring."""
    if not words or words[0].startswith("-"):
        print("give the folder of the repositories", file=sys.stderr)
        return 2
    folder, known, failed = Path(words[0]), recorded() if RECORDED.exists() else {}, False
    for driver, source in SOURCES.items():
        if not (folder / source.path).exists():
            print(f"{driver}: not looked at, there is no {source.path}")
            continue
        wrong = list(problems(source, folder))
        found = objects(source, folder, with_recipe=False)
        print(f"{driver}: {'; '.join(wrong) or 'the recipe fits'}")
        for program, rights in lacking(found).items():
            print(f"    {program} lacks {', '.join(rights) or 'no right'}")
        failed |= bool(wrong)
        if all_found := sidecars(found):
            known[driver] = {one.spec.program: one.arguments() for one in all_found.values()}
    if "--record" in words:
        head = "".join(
            line + "\n" for line in RECORDED.read_text().splitlines() if line.startswith("#")
        )
        RECORDED.write_text(head + yaml.safe_dump(known, sort_keys=False, width=100))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
