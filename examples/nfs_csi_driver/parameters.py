"""Parameters of a class, and the ids of volumes and snapshots (NF-011 to NF-015).

As in the Go driver, ids contain all that later calls need: `server#share#subDir#uuid#onDelete` for
a volume, `server#share#name#name#source` for a snapshot. `#` and `%` inside a field are
percent-encoded (NFD-011). An id over 128 bytes, CSI's limit, is shortened to
`server#share#@<sha256 of the name>##`, and the record in the share has the rest (NFD-012).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from examples.nfs_csi_driver.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ID_BYTES: Final = 128
RESERVED: Final = ".nfs-csi"
POLICIES: Final = ("delete", "retain", "archive")
METADATA: Final = {
    "csi.storage.k8s.io/pvc/name": "pvc.metadata.name",
    "csi.storage.k8s.io/pvc/namespace": "pvc.metadata.namespace",
    "csi.storage.k8s.io/pv/name": "pv.metadata.name",
}
SNAPSHOT_METADATA: Final = frozenset(
    f"csi.storage.k8s.io/volumesnapshot{kind}" for kind in ("/name", "/namespace", "content/name")
)
_KNOWN: Final = {
    name.lower(): name for name in ("server", "share", "subDir", "onDelete", "mountPermissions")
}
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_OCTAL: Final = re.compile(r"0?o?[0-7]{1,5}")


def digest(name: str) -> str:
    """Return the name of a volume's or snapshot's record."""
    return hashlib.sha256(name.encode()).hexdigest()


def _quote(field: str) -> str:
    return field.replace("%", "%25").replace("#", "%23")


def has_parent(path: str) -> bool:
    """Return True if a path segment is `..`, with either kind of slash (NF-015)."""
    return ".." in path.replace("\\", "/").split("/")


def octal(text: str) -> int:
    """Read a mode such as 0770; empty is 0.

    Raises:
        RpcError: INVALID_ARGUMENT.
    """
    if text and not _OCTAL.fullmatch(text):
        raise invalid(f"invalid mountPermissions {text} in storage class")
    return int(text.lower().replace("o", ""), 8) if text else 0


@dataclass(frozen=True, slots=True)
class Parameters:
    """A class's checked parameters; `sub_dir` is expanded, "" if not given."""

    server: str
    share: str
    sub_dir: str
    on_delete: str
    permissions: int
    context: dict[str, str]

    @classmethod
    def read(cls, values: Mapping[str, str], volume_name: str) -> Parameters:
        """Read the parameters of CreateVolume.

        Raises:
            RpcError: INVALID_ARGUMENT.
        """
        known, variables = {}, {"pv.metadata.name": volume_name}
        for key, value in values.items():
            if key in METADATA:
                variables[METADATA[key]] = value
            elif key.lower() in _KNOWN:
                known[_KNOWN[key.lower()]] = value
            else:
                raise invalid(f'invalid parameter "{key}" in storage class')
        server = known.get("server", "")
        if not server:
            raise invalid("server is a required parameter")
        if "#" in server or "/" in server:
            raise invalid(f"server {server!r} is no host name or address")
        share = check_share(known.get("share", ""))
        on_delete = known.get("onDelete", "").lower()
        if on_delete and on_delete not in POLICIES:
            raise invalid(
                f"invalid value {known['onDelete']} for OnDelete, supported values are "
                f"{', '.join(POLICIES)}"
            )
        sub_dir = expand(known["subDir"], variables) if known.get("subDir") else ""
        permissions = octal(known.get("mountPermissions", ""))
        context = {**known, **{key: value for key, value in values.items() if key in METADATA}}
        context["subDir"] = sub_dir or volume_name
        return cls(server, share, sub_dir, on_delete, permissions, context)


def check_share(share: str) -> str:
    """Return the share without leading and trailing slashes.

    Raises:
        RpcError: INVALID_ARGUMENT.
    """
    if not share:
        raise invalid("share is a required parameter")
    if has_parent(share):
        raise invalid(f"share {share!r} must not contain '..'")
    return share.strip("/")


def expand(template: str, variables: Mapping[str, str]) -> str:
    """Replace `${pvc.metadata.name}` and similar variables (NF-012).

    Raises:
        RpcError: INVALID_ARGUMENT; a variable has no value, or the path is invalid.
    """
    if missing := [name for name in _VARIABLE.findall(template) if name not in variables]:
        raise invalid(f"subDir: ${{{missing[0]}}} has no value (--extra-create-metadata?)")
    filled = _VARIABLE.sub(lambda match: variables[match[1]], template)
    # Normalised, because paths are compared as texts.
    path = "/".join(part for part in filled.split("/") if part not in {"", "."})
    if not path:
        raise invalid(f"subDir {template!r} is empty")
    return check_directory(path)


def check_directory(path: str) -> str:
    """Return the path if it is a valid directory below a share.

    Raises:
        RpcError: INVALID_ARGUMENT.
    """
    if has_parent(path):
        raise invalid(f"{path!r} must not contain '..'")
    if path.split("/", maxsplit=1)[0].startswith(RESERVED):
        raise invalid(f"{path!r} is a reserved name")
    return path


@dataclass(frozen=True, slots=True)
class VolumeId:
    """A parsed volume id. `name` is the CSI name, or in a shortened id `@<sha256>` of it."""

    server: str
    share: str
    sub_dir: str
    uuid: str = ""
    on_delete: str = ""

    @property
    def name(self) -> str:
        """The volume's CSI name; a separate field only if the class set a directory."""
        return self.uuid or self.sub_dir

    @property
    def record(self) -> str:
        """Name of the volume's record."""
        return self.name[1:] if self.is_short else digest(self.name)

    @property
    def is_short(self) -> bool:
        """True if directory and policy are only in the record."""
        return not self.uuid and re.fullmatch(r"@[0-9a-f]{64}", self.sub_dir) is not None

    @property
    def text(self) -> str:
        """The id as text (NF-013)."""
        on_delete = self.on_delete if self.on_delete in {"retain", "archive"} else ""
        fields = (self.server, self.share, self.sub_dir.strip("/"), self.uuid, on_delete)
        full = "#".join(map(_quote, fields))
        if len(full.encode()) <= MAX_ID_BYTES:
            return full
        return "#".join((_quote(self.server), _quote(self.share), f"@{self.record}", "", ""))

    @classmethod
    def of(cls, parameters: Parameters, name: str) -> VolumeId:
        """Return the id of a new volume."""
        given = parameters.sub_dir
        return cls(
            parameters.server,
            parameters.share,
            given or name,
            name if given else "",
            parameters.on_delete,
        )

    @classmethod
    def parse(cls, text: str) -> VolumeId | None:
        """Parse an id; None if it is not this driver's (NF-013)."""
        fields = [unquote(field) for field in text.split("#")]
        if len(fields) >= 3:
            found = cls(*fields[:5])
        else:
            server, _, rest = text.partition("/")
            share, _, sub_dir = rest.rpartition("/")
            found = cls(server, share, sub_dir)
        is_whole = found.server and found.share and found.sub_dir
        if not is_whole or has_parent(found.share) or has_parent(found.sub_dir):
            return None
        if found.sub_dir.split("/")[0].startswith(RESERVED):
            return None
        return replace(found, share=found.share.strip("/"))


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """A parsed snapshot id (NF-014)."""

    server: str
    share: str
    name: str
    source: str

    @property
    def record(self) -> str:
        """Name of the snapshot's folder in the share."""
        return self.name[1:] if self.is_short else digest(self.name)

    @property
    def is_short(self) -> bool:
        """True if name and source are only in the record."""
        return not self.source and re.fullmatch(r"@[0-9a-f]{64}", self.name) is not None

    @property
    def text(self) -> str:
        """The id as text."""
        fields = (self.server, self.share, self.name, self.name, self.source)
        full = "#".join(map(_quote, fields))
        if len(full.encode()) <= MAX_ID_BYTES:
            return full
        return "#".join((_quote(self.server), _quote(self.share), f"@{self.record}", "", ""))

    @classmethod
    def parse(cls, text: str) -> SnapshotId | None:
        """Parse an id; None if it is not this driver's."""
        fields = [unquote(field) for field in text.split("#")]
        if len(fields) != 5 or not all(fields[:3]):
            return None
        server, share, name, _, source = fields
        if has_parent(share) or has_parent(name) or has_parent(source):
            return None
        return cls(server, share.strip("/"), name, source)
