"""The chart as an OCI archive, with the contents that `helm push` would send to a registry.

A registry client (skopeo, oras) pushes the archive without Helm, and the digest of the pushed
chart is known before. The same chart gives the same bytes.
Source: https://helm.sh/community/hips/hip-0006 and hip-0017 (media types), OCI image-spec
image-layout.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MARK: Final = "org.opencontainers.image"


def chart_archive(packed: Path, epoch: int) -> bytes:
    """Returns the archive (tar) of a packed chart (`NAME-VERSION.tgz`); its tag is the version."""
    content = packed.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        (name,) = [one for one in archive.getnames() if one.count("/") == 1
                   and one.endswith("/Chart.yaml")]  # fmt: skip
        opened = archive.extractfile(name)
        assert opened is not None  # a file, by its name
        about = yaml.safe_load(opened)
    blobs: dict[str, bytes] = {}

    def blob(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data), **more}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(CONFIG, _json(about)),
        "layers": [blob(CONTENT, content)],
        "annotations": {
            f"{_MARK}.created": datetime.fromtimestamp(epoch, UTC).isoformat(),
            f"{_MARK}.title": about["name"],
            f"{_MARK}.version": about["version"],
            f"{_MARK}.description": about["description"],
        },
    }
    tag = {f"{_MARK}.ref.name": about["version"]}
    entry = blob(MANIFEST, _json(manifest), annotations=tag)
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in sorted((files | blobs).items()):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(data), epoch, 0o644
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
