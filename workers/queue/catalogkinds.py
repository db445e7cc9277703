"""Names the catalog's kinds for the watcher and the workers; this module is cheap to import."""

from __future__ import annotations

from typing import Final

KIND_CLASSES: Final = "classes"
KIND_CSINODES: Final = "csinodes"
KIND_NODES: Final = "nodes"
KIND_ATTACHMENTS: Final = "attachments"
