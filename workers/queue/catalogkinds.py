"""Names the kinds of the catalog that watcher and workers share, in a module light to import."""

from __future__ import annotations

from typing import Final

KIND_CLASSES: Final = "classes"
KIND_CSINODES: Final = "csinodes"
KIND_NODES: Final = "nodes"
KIND_ATTACHMENTS: Final = "attachments"
