"""What was the driver told at start? (NF-001)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VERSION = "1.0.0"


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags."""

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
        """The profile of the article (NF-060)."""
        return self.id_scheme == "demo"

    @property
    def has_default(self) -> bool:
        """Whether there is a share to look at without a request naming one."""
        return bool(self.default_server and self.default_share)
