"""The driver's settings (NF-001)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VERSION = "1.0.0"


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the flags."""

    name: str = "nfs.csi.k8s.io"
    node_id: str = ""
    role: str = "all"
    state_dir: Path = Path("nfs-csi-state")
    mount_permissions: int = 0
    default_on_delete: str = "delete"
    stats_cache_seconds: float = 600.0
    remove_archived: bool = False
    compress_snapshots: bool = True
    default_server: str = ""
    default_share: str = ""
    id_scheme: str = "full"
    id_prefix: str = "nfs-volume"
    attach: bool = False
    delete_in_background: bool = True
    allow_shared_directories: bool = False

    @property
    def is_demo(self) -> bool:
        """True for the setup of the article (NF-060)."""
        return self.id_scheme == "demo"

    @property
    def has_default(self) -> bool:
        """True if there is a default share, for requests that name none."""
        return bool(self.default_server and self.default_share)
