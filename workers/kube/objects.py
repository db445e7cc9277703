"""The fields of API objects that the watcher looks at, and nothing else.

Decoding bytes straight into these structs costs a seventh of untyped JSON and holds no
unused field (pitfalls 4.1). Every field has a default, so that an absent one never fails;
a field of a wrong type fails that object only, and the reflector skips it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, Any]


class Meta(msgspec.Struct, rename="camel", gc=False):
    """Part of metav1.ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    finalizers: list[str] | None = None

    def annotation(self, name: str) -> str | None:
        """Return an annotation's value, None if absent (an empty value is present)."""
        return self.annotations.get(name) if self.annotations else None

    def has_finalizer(self, name: str) -> bool:
        """Tell whether the finalizer is on the object."""
        return bool(self.finalizers) and name in (self.finalizers or ())


class DataSource(msgspec.Struct, rename="camel", gc=False):
    """TypedLocalObjectReference or TypedObjectReference."""

    kind: str = ""
    name: str = ""
    namespace: str | None = None


class ClaimSpec(msgspec.Struct, rename="camel", gc=False):
    """Part of a PersistentVolumeClaimSpec."""

    volume_name: str = ""
    storage_class_name: str | None = None
    data_source: DataSource | None = None
    data_source_ref: DataSource | None = None


class Phase(msgspec.Struct, gc=False):
    """The status of a claim or volume."""

    phase: str = ""


class Claim(msgspec.Struct, gc=False):
    """A PersistentVolumeClaim."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: Phase = msgspec.field(default_factory=Phase)


class CsiSource(msgspec.Struct, gc=False):
    """Part of a CSIPersistentVolumeSource."""

    driver: str = ""


class VolumeSpec(msgspec.Struct, rename="camel", gc=False):
    """Part of a PersistentVolumeSpec."""

    csi: CsiSource | None = None
    persistent_volume_reclaim_policy: str = ""
    # Looked at in node deployment only.
    node_affinity: JsonObject | None = None


class Volume(msgspec.Struct, gc=False):
    """A PersistentVolume."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: Phase = msgspec.field(default_factory=Phase)


class CsiNodeDriver(msgspec.Struct, rename="camel", gc=False):
    """One driver on a node: its topology keys."""

    name: str = ""
    topology_keys: list[str] | None = None


class CsiNodeSpec(msgspec.Struct, gc=False):
    """The drivers of a node."""

    drivers: list[CsiNodeDriver] | None = None


class CsiNode(msgspec.Struct, gc=False):
    """A CSINode."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)


class Node(msgspec.Struct, gc=False):
    """A Node, read as PartialObjectMetadata: labels only."""

    metadata: Meta = msgspec.field(default_factory=Meta)


class AnyObject(msgspec.Struct, gc=False):
    """Any object of which the metadata says enough."""

    metadata: Meta = msgspec.field(default_factory=Meta)


class AttachmentSource(msgspec.Struct, rename="camel", gc=False):
    """What is attached."""

    persistent_volume_name: str | None = None


class AttachmentSpec(msgspec.Struct, rename="camel", gc=False):
    """Part of a VolumeAttachmentSpec."""

    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = msgspec.field(default_factory=AttachmentSource)


class Attachment(msgspec.Struct, gc=False):
    """A VolumeAttachment."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: AttachmentSpec = msgspec.field(default_factory=AttachmentSpec)
