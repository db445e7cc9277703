"""Provisions NFS volumes: a server's export, or a new directory in it for each claim.

Run it:

    export NFS_EXPORTS=nfs1:/export=/mnt/nfs1
    csi-fleet run --provisioner examples.nfs_provisioner.provisioner:NfsProvisioner

Class parameters: `server`, `path`, `readOnly`, `subDir` (or `pathPattern`), `onDelete` (or
`archiveOnDelete`). Environment: NFS_PROVISIONER_NAME, NFS_REQUIRE_SUBDIR, NFS_EXPORTS (see
`exports`). No state is kept: everything is derived from class, claim and volume.
"""

from __future__ import annotations

import logging
import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.nfs_provisioner import directories
from examples.nfs_provisioner.exports import ExportError, Exports, exports_from
from workers.custom import (
    INVALID_ARGUMENT,
    Ignored,
    Options,
    ProvisionError,
    ProvisionOptions,
    ProvisionResult,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)

DEFAULT_NAME = "provisioner.test.com/nfs"
ANN_ON_DELETE = "nfs.example/on-delete"
ANN_EXPORT = "nfs.example/export"
ANN_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
POLICIES = ("retain", "delete", "archive")
KEYS = {"server", "path", "readOnly", "subDir", "onDelete", "pathPattern", "archiveOnDelete"}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a class (NP-002)."""

    server: str
    path: str
    read_only: bool
    sub_dir: str
    on_delete: str

    @classmethod
    def read(cls, values: Mapping[str, str]) -> Parameters:
        """Reads and checks all parameters of a class.

        Raises:
            ProvisionError: INVALID_ARGUMENT, so that retries are slow.
        """
        if unknown := sorted(set(values) - KEYS):
            raise invalid(f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
        for key in ("server", "path"):
            if not values.get(key):
                raise invalid(f"parameter {key!r} is missing in the storage class")
        if not values["path"].startswith("/"):
            raise invalid(f"parameter 'path' must be absolute, not {values['path']!r}")
        archive = {"true": "archive", "false": "delete"}.get(values.get("archiveOnDelete", ""), "")
        on_delete = values.get("onDelete") or archive or "retain"
        sub_dir = values.get("subDir", values.get("pathPattern", ""))
        if on_delete not in POLICIES:
            raise invalid(f"parameter 'onDelete' must be one of {', '.join(POLICIES)}")
        if {"onDelete", "archiveOnDelete"} & set(values) and not sub_dir:
            raise invalid("parameter 'onDelete' needs 'subDir'")
        path = posixpath.normpath(values["path"])
        return cls(values["server"], path, values.get("readOnly") == "true", sub_dir, on_delete)


class NfsProvisioner:
    """The plug-in (NP-001 to NP-007); takes all settings from the environment by default."""

    options = Options(add_finalizer=True)

    def __init__(
        self,
        name: str | None = None,
        exports: Exports | None = None,
        *,
        require_sub_dir: bool | None = None,
    ) -> None:
        self.name = name or os.environ.get("NFS_PROVISIONER_NAME", DEFAULT_NAME)
        self._exports = exports or exports_from(os.environ.get("NFS_EXPORTS", ""))
        if require_sub_dir is None:
            require_sub_dir = os.environ.get("NFS_REQUIRE_SUBDIR") == "true"
        self._require_sub_dir = require_sub_dir
        self._warned: set[str] = set()

    def provision(self, options: ProvisionOptions) -> ProvisionResult:
        """Returns a PV for the claim; with `subDir` creates its directory first (NP-003)."""
        spec = options.claim["spec"]
        if spec.get("selector") is not None:
            raise ProvisionError("claim Selector is not supported", State.FINISHED)
        parameters = Parameters.read(options.parameters)
        path = parameters.path
        if parameters.sub_dir:
            sub_dir = self._expand(parameters.sub_dir, options)
            self._make(parameters, sub_dir, options.pv_name)
            path = posixpath.join(path, sub_dir)
        else:
            self._check_shared(options)
        return ProvisionResult(self._volume(options, parameters, path))

    def delete(self, volume: dict[str, Any]) -> None:
        """Deletes by the policy that is stored in the volume (NP-004)."""
        annotations = volume["metadata"].get("annotations") or {}
        if annotations.get(ANN_PROVISIONED_BY) != self.name:
            raise Ignored(f"volume {volume['metadata']['name']} is not of {self.name}")
        policy, export = annotations.get(ANN_ON_DELETE), annotations.get(ANN_EXPORT)
        if not export or policy not in {"delete", "archive"}:
            return
        nfs = volume["spec"]["nfs"]
        sub_dir = posixpath.relpath(nfs["path"], export)
        directories.check(sub_dir)
        directories.check(posixpath.normpath(nfs["path"]).strip("/"))
        with self._exports.opened(nfs["server"], export) as root:
            try:
                if policy == "delete":
                    directories.remove(root, sub_dir, volume["metadata"]["name"])
                else:
                    directories.archive(root, sub_dir, volume["metadata"]["name"])
            except directories.TakenError as error:
                raise ProvisionError(f"not deleted: {error}", State.FINISHED) from error

    def _expand(self, template: str, options: ProvisionOptions) -> str:
        metadata = options.claim["metadata"]
        names = {"name": metadata["name"], "namespace": metadata["namespace"]}
        texts = {
            f"{kind}.{name}": text
            for kind in ("annotations", "labels")
            for name, text in (metadata.get(kind) or {}).items()
        }
        try:
            return directories.expand(
                template,
                {
                    **{f"pvc.metadata.{name}": text for name, text in names.items()},
                    "pv.metadata.name": options.pv_name,
                    # As in nfs-subdir-external-provisioner, with and without the dot.
                    **{f"PVC.{name}": text for name, text in (names | texts).items()},
                    **{f".PVC.{name}": text for name, text in (names | texts).items()},
                },
            )
        except ValueError as error:
            raise invalid(f"parameter 'subDir': {error}") from error

    def _make(self, parameters: Parameters, sub_dir: str, owner: str) -> None:
        try:
            with self._exports.opened(parameters.server, parameters.path) as root:
                directories.make(root, sub_dir, owner)
        except (directories.TakenError, ValueError) as error:
            raise invalid(f"parameter 'subDir': {error}") from error
        except (OSError, ExportError) as error:
            # The server may have created it anyway, so the claim must be retried.
            raise ProvisionError(f"cannot make {sub_dir}: {error}", State.BACKGROUND) from error

    def _check_shared(self, options: ProvisionOptions) -> None:
        """Refuse, or log once, a class without `subDir`: its claims share a directory (NP-005)."""
        name = options.storage_class["metadata"]["name"]
        if self._require_sub_dir:
            raise invalid("parameter 'subDir' is required here: claims must not share a directory")
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("all claims of class %s share one directory; set 'subDir'", name)

    def _volume(
        self, options: ProvisionOptions, parameters: Parameters, path: str
    ) -> dict[str, Any]:
        storage_class, spec = options.storage_class, options.claim["spec"]
        annotations = {}
        if parameters.sub_dir:
            annotations = {ANN_ON_DELETE: parameters.on_delete, ANN_EXPORT: parameters.path}
        return {
            "metadata": {"name": options.pv_name, "annotations": annotations},
            "spec": {
                "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
                "accessModes": list(spec.get("accessModes") or []),
                "mountOptions": list(storage_class.get("mountOptions") or []),
                "capacity": {"storage": options.requested_size},
                "volumeMode": "Filesystem",
                "nfs": {
                    "server": parameters.server,
                    "path": path,
                    "readOnly": parameters.read_only,
                },
            },
        }


def invalid(message: str) -> ProvisionError:
    """Return the error for a request that can never succeed: retries are slow."""
    return ProvisionError(message, State.FINISHED, code=INVALID_ARGUMENT)
