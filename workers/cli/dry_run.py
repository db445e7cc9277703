"""`csi-fleet dry-run pvc NAMESPACE/NAME` or `-f FILE`: prints the request for the driver."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from csi_client.redact import redact
from workers.cli import terminal
from workers.cli.tools import named_object
from workers.controllers.provisioner.rehearsal import rehearse
from workers.errors import ConfigError, IgnoredError
from workers.explain.gather import elsewhere, find_driver
from workers.kube import paths
from workers.kube.errors import NotFoundError
from workers.queue.catalog import CatalogReader
from workers.translate.claims import claim_class_name, selected_node

if TYPE_CHECKING:
    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject

ANN_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def run(tools: Tools) -> int:
    """Run the command; secrets are masked, and nothing is called or changed."""
    try:
        name = tools.settings.tool.filename
        documents = _documents(name) if name else []
        claim = _from_file(name, documents) if name else _from_cluster(tools)
        storage_class = _class_of_file(documents, claim) or _class(tools, claim)
        provisioner = str(storage_class.get("provisioner"))
        _, record = find_driver(tools.registry.alive(), provisioner, selected_node(claim))
        if record is None:
            raise ConfigError(
                f'no worker serves driver "{provisioner}", so its capabilities are not known. '
                "Start a worker for the driver",
                exit_code=1,
            )
        request = rehearse(
            tools.kube.client,
            CatalogReader(tools.redis),
            settings=tools.settings,
            record=record,
            claim=claim,
            storage_class=storage_class,
        )
    except (NotFoundError, IgnoredError) as error:
        raise ConfigError(str(error), exit_code=1) from error
    shown = json.loads(redact(request))
    if tools.is_data:
        tools.write("DryRun", {"driver": record["name"], "request": shown})
    else:
        terminal.write_json(shown)
    return 0


def _from_cluster(tools: Tools) -> JsonObject:
    _, namespace, name = named_object(
        tools.settings.arguments,
        "dry-run",
        frozenset({"pvc"}),
        "-f FILE",
        given=tools.settings.tool.namespace,
    )
    try:
        return tools.kube.get_claim(namespace, name)
    except NotFoundError as error:
        hint = elsewhere(tools.kube, namespace, name)
        raise ConfigError(f"{error}.{hint}" if hint else str(error), exit_code=1) from error


def _from_file(name: str, documents: list[JsonObject]) -> JsonObject:
    claims = [one for one in documents if one.get("kind") == "PersistentVolumeClaim"]
    if len(claims) != 1:
        raise ConfigError(
            f"--filename {name}: the file contains {len(claims)} PersistentVolumeClaims. Give a "
            "file with exactly one"
        )
    return claims[0]


def _class_of_file(documents: list[JsonObject], claim: JsonObject) -> JsonObject | None:
    """Return the claim's class if the file defines it; the cluster need not have the class yet."""
    for one in documents:
        is_class = one.get("kind") == "StorageClass"
        if is_class and (one.get("metadata") or {}).get("name") == claim_class_name(claim):
            return {"parameters": {}, **one}
    return None


def _documents(name: str) -> list[JsonObject]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        # Python's own message would repeat the path.
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        text = text.replace('in "<unicode string>", ', "in ")
        raise ConfigError(f"--filename {name}: {' '.join(text.split())}") from error
    return [one for one in documents if isinstance(one, dict)]


def _class(tools: Tools, claim: JsonObject) -> JsonObject:
    name = claim_class_name(claim)
    if name:
        return tools.kube.get_class(name)
    if (claim.get("spec") or {}).get("storageClassName") is not None:
        raise ConfigError(
            "the claim requests no storage class (the name is empty), so nothing is provisioned"
        )
    defaults = [one for one in tools.kube.list(paths.STORAGE_CLASSES) if _is_default(one)]
    if not defaults:
        raise ConfigError("the claim names no storage class, and the cluster has no default class")
    # Like the API server, choose the newest class; of equally new classes, the first by name.
    newest = max(one["metadata"]["creationTimestamp"] for one in defaults)
    chosen = [one for one in defaults if one["metadata"]["creationTimestamp"] == newest]
    return min(chosen, key=lambda one: str(one["metadata"]["name"]))


def _is_default(storage_class: dict[str, Any]) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return annotations.get(ANN_DEFAULT_CLASS) == "true"
