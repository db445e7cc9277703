"""Provisioners that do what a test writes into a folder, for `csi-fleet run --provisioner`.

Each kind has its own folder below TEST_PLUGIN_DIR. `rules.json` maps a claim to a list of words,
one for each call; the last word is repeated. `calls.jsonl` records the calls; `volumes/` contains
the volumes. The provisioner's name is `<TEST_PLUGIN_TAG>.example.com/<kind>`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from workers.custom import (
    INVALID_ARGUMENT,
    Ignored,
    Options,
    ProvisionError,
    ProvisionOptions,
    ProvisionResult,
    State,
    VolumeStore,
)

STATES = {
    "final": State.FINISHED,
    "background": State.BACKGROUND,
    "no-change": State.NO_CHANGE,
    "reschedule": State.RESCHEDULE,
}


class ScriptedProvisioner:
    """Provisions directories, unless its rules say something else."""

    kind = "plain"
    options = Options(failed_provision_threshold=3, failed_delete_threshold=2)

    def __init__(self, folder: Path | None = None, tag: str = "") -> None:
        tag = tag or os.environ["TEST_PLUGIN_TAG"]
        self.name = f"{tag}.example.com/{self.kind}"
        self.script = Script((folder or Path(os.environ["TEST_PLUGIN_DIR"])) / self.kind)

    def provision(self, options: ProvisionOptions) -> ProvisionResult:
        metadata = options.claim["metadata"]
        claim = f"{metadata['namespace']}/{metadata['name']}"
        word = self.script.next("provision", claim)
        self.script.note("provision", claim, options.selected_node)
        kind, _, text = word.partition(":")
        if kind == "ignored":
            raise Ignored("not mine")
        if kind == "bare":
            raise RuntimeError(text)
        if kind == "invalid":
            raise ProvisionError(text, code=INVALID_ARGUMENT)
        if kind in STATES:
            raise ProvisionError(text or kind, STATES[kind])
        path = self.script.volumes / options.pv_name
        path.mkdir(exist_ok=True)
        options.claim["spec"]["accessModes"].append("changed by the plug-in")
        capacity = {} if kind == "no-capacity" else {"storage": options.requested_size}
        return ProvisionResult(
            {
                "metadata": {"name": options.pv_name},
                "spec": {
                    "capacity": capacity,
                    "accessModes": ["ReadWriteOnce"],
                    "volumeMode": options.claim["spec"].get("volumeMode", "Filesystem"),
                    "persistentVolumeReclaimPolicy": options.storage_class["reclaimPolicy"],
                    "local" if kind == "local" else "hostPath": {"path": str(path)},
                },
            }
        )

    def delete(self, volume: dict[str, Any]) -> None:
        name = volume["metadata"]["name"]
        reference = volume["spec"]["claimRef"]
        claim = f"{reference['namespace']}/{reference['name']}"
        word = self.script.next("delete", claim)
        self.script.note("delete", claim, None)
        if word == "ignored":
            raise Ignored("not my volume")
        if word != "ok":
            raise ProvisionError(word)
        path = self.script.volumes / name
        if path.exists():
            path.rmdir()


class Guarded(ScriptedProvisioner):
    """Accepts claims with the label `wanted=yes`; keeps volumes with the label `keep=yes`."""

    kind = "guarded"
    options = Options()

    def should_provision(self, claim: dict[str, Any]) -> bool:
        return (claim["metadata"].get("labels") or {}).get("wanted") == "yes"

    def should_delete(self, volume: dict[str, Any]) -> bool:
        return (volume["metadata"].get("labels") or {}).get("keep") != "yes"


class Block(ScriptedProvisioner):
    kind = "block"
    options = Options(add_finalizer=True)

    def supports_block(self) -> bool:
        return True


class Backoff(ScriptedProvisioner):
    kind = "backoff"
    options = Options(volume_store=VolumeStore.BACKOFF, save_attempts=3, save_interval_seconds=0.2)


class Broken(ScriptedProvisioner):
    """Its guard raises an error that a reconcile does not expect, while its rules say so."""

    kind = "broken"

    def should_delete(self, volume: dict[str, Any]) -> bool:
        reference = volume["spec"]["claimRef"]
        claim = f"{reference['namespace']}/{reference['name']}"
        if self.script.next("guard", claim) == "raises":
            raise RuntimeError("a mistake in the guard")
        return True


ALL = (ScriptedProvisioner, Guarded, Block, Backoff)


class Script:
    """The folder of one kind, as used by the plug-in and by the test.

    A test sets `namespace`, so that `set` and `calls` need only the claim's name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace = ""
        self.volumes = folder / "volumes"
        self.volumes.mkdir(parents=True, exist_ok=True)

    def set(self, action: str, claim: str, *words: str) -> None:
        """Set what the next calls do; the last word is repeated."""
        rules = self._rules()
        rules[f"{action} {self.namespace}/{claim}"] = list(words)
        self._write(rules)

    def next(self, action: str, claim: str) -> str:
        rules = self._rules()
        words = rules.get(f"{action} {claim}", ["ok"])
        if len(words) > 1:
            rules[f"{action} {claim}"] = words[1:]
            self._write(rules)
        return str(words[0])

    def note(self, action: str, claim: str, node: str | None) -> None:
        with (self.folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps({"action": action, "claim": claim, "node": node}) + "\n")

    def calls(self, action: str, claim: str) -> list[dict[str, Any]]:
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        wanted = (action, f"{self.namespace}/{claim}")
        return [one for one in found if (one["action"], one["claim"]) == wanted]

    def _rules(self) -> dict[str, list[str]]:
        path = self.folder / "rules.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _write(self, rules: dict[str, list[str]]) -> None:
        draft = self.folder / "rules.draft"
        draft.write_text(json.dumps(rules))
        draft.replace(self.folder / "rules.json")
