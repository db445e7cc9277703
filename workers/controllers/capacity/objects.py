"""Builds CSIStorageCapacity objects and decides when an existing object must be written.

Selectors are compared by meaning, so an absent `matchLabels` equals an empty one (CAP-051). The API
forbids changes to an object's class and selector, but the object's sizes and owner can change.
"""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from csi_client.messages import GetCapacityRequest, Topology
from workers.constants import LABEL_DRIVER_NAME, LABEL_MANAGED_BY
from workers.controllers.capacity.items import Item
from workers.topology.terms import make_term
from workers.translate.quantity import QuantityError, canonical, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from csi_client.messages import GetCapacityResponse
    from workers.kube.objects import JsonObject
    from workers.topology.terms import Term

MANAGED_BY: Final = "external-provisioner"
_MAX_LABEL: Final = 63
_NAME_PREFIX: Final = "csisc-"
_NAME_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME_LENGTH: Final = 5  # as many as the API server generates
_NAME_ATTEMPTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """The identity under which a driver's objects are written.

    Attributes:
        driver_name: the name of the CSI driver.
        namespace: the objects' namespace, from the environment variable NAMESPACE.
        managed_by: the value of the managed-by label, `managed_by(node)` in node deployment.
        owner: the controlling owner reference of every object; None if the objects have no
            owner (CAP-060).
        api_version: v1, or v1beta1 if v1 is not served (CAP-002).
    """

    driver_name: str
    namespace: str
    managed_by: str = MANAGED_BY
    owner: Mapping[str, Any] | None = None
    api_version: str = "storage.k8s.io/v1"

    @property
    def labels(self) -> dict[str, str]:
        """The two labels that mark this publisher's objects; also used to select them."""
        return {LABEL_DRIVER_NAME: self.driver_name, LABEL_MANAGED_BY: self.managed_by}

    def manages(self, existing: Mapping[str, Any]) -> bool:
        """Return True if this publisher may change or delete the object (CAP-003, CAP-052)."""
        metadata = existing["metadata"]
        labels = metadata.get("labels") or {}
        return metadata.get("namespace") == self.namespace and all(
            labels.get(name) == value for name, value in self.labels.items()
        )

    def can_adopt(self, existing: Mapping[str, Any], item: Item) -> bool:
        """Return True if an object with one of the `object_names` belongs to the item (CAP-050)."""
        return self.manages(existing) and item_of(existing) == item


@dataclass(frozen=True, slots=True)
class Sizes:
    """The driver's response for one item, in bytes; `maximum_bytes` is None if not reported."""

    available_bytes: int
    maximum_bytes: int | None = None


def managed_by(suffix: str, base: str = MANAGED_BY) -> str:
    """Return the managed-by label of one node's provisioner, at most 63 characters (CAP-004).

    The label has the form `external-provisioner-node1`. If it would be too long, the base is
    shortened and the base's hash is added: `external-p-53f40b57-node...`. If the node's name leaves
    no room for that, the label is the base and a hash of both: `external-provisioner-a3607ff1`.

    Source: external-provisioner, pkg/capacity/topology deterministic names (util GenerateName).
    """
    full = f"{base}-{suffix}" if base else suffix
    if len(full) <= _MAX_LABEL:
        return full
    room = _MAX_LABEL - 10 - len(suffix)
    if base and room > 0:
        return f"{base[:room]}-{_fnv1a_32(base)}-{suffix}"
    kept = base[: _MAX_LABEL - 9]
    return f"{kept}-{_fnv1a_32(full)}" if kept else _fnv1a_32(full)


def _fnv1a_32(text: str) -> str:
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return f"{value:08x}"


def object_names(publisher: Publisher, item: Item) -> Iterator[str]:
    """Yield the names to try for an item's object; they are the same in every worker (M-014).

    On AlreadyExists the caller reads the object and adopts it if `publisher.can_adopt` returns
    True. Otherwise the caller tries the next name, because the hash of another item is the same or
    a user removed the labels (C-098). The suffix has five characters, not ten (M-014), so that the
    names look like csi-provisioner's.
    """
    for attempt in range(_NAME_ATTEMPTS):
        text = "\0".join([publisher.driver_name, publisher.managed_by, item.text, str(attempt)])
        number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
        letters = []
        for _ in range(_NAME_LENGTH):
            number, digit = divmod(number, len(_NAME_ALPHABET))
            letters.append(_NAME_ALPHABET[digit])
        yield _NAME_PREFIX + "".join(letters)


def desired_object(publisher: Publisher, item: Item, sizes: Sizes, name: str) -> JsonObject:
    """Return the object to create for an item (CAP-002, CAP-005, CAP-006).

    `generateName` is set in addition to the name. The API server keeps it, so the object looks like
    csi-provisioner's. A capacity of zero is published too.
    """
    metadata: JsonObject = {
        "generateName": _NAME_PREFIX,
        "name": name,
        "namespace": publisher.namespace,
        "labels": publisher.labels,
    }
    if publisher.owner:
        metadata["ownerReferences"] = [dict(publisher.owner)]
    body: JsonObject = {
        "apiVersion": publisher.api_version,
        "kind": "CSIStorageCapacity",
        "metadata": metadata,
        "storageClassName": item.storage_class,
        "nodeTopology": {"matchLabels": dict(item.segment)},
    }
    _set_sizes(body, sizes)
    return body


def updated_object(
    publisher: Publisher, existing: Mapping[str, Any], sizes: Sizes
) -> JsonObject | None:
    """Return the full object to PUT, or None if no write is needed (CAP-040 steps 5 and 6).

    The copy keeps the resourceVersion, so the PUT gets a 409 after a concurrent change. The
    publisher's owner is added if it is missing. It replaces any other controlling owner, because
    the API server allows only one and would refuse a second one (CAP-061). Other owners are kept;
    if the publisher has no owner, all owners are kept.
    """
    references = list(existing["metadata"].get("ownerReferences") or ())
    owned = _with_owner(references, publisher.owner)
    if owned == references and _sizes_of_object(existing) == sizes:
        return None
    body: JsonObject = deepcopy(dict(existing))
    if owned:
        body["metadata"]["ownerReferences"] = deepcopy(owned)
    _set_sizes(body, sizes)
    return body


def _with_owner(
    references: list[Mapping[str, Any]], owner: Mapping[str, Any] | None
) -> list[Mapping[str, Any]]:
    if owner is None:
        return references
    if any(one.get("controller") and one.get("uid") == owner["uid"] for one in references):
        return references
    others = [
        one for one in references if not one.get("controller") and one.get("uid") != owner["uid"]
    ]
    return [*others, owner]


def _set_sizes(body: JsonObject, sizes: Sizes) -> None:
    body["capacity"] = canonical(sizes.available_bytes)
    body.pop("maximumVolumeSize", None)
    if sizes.maximum_bytes is not None:
        body["maximumVolumeSize"] = canonical(sizes.maximum_bytes)


def _sizes_of_object(existing: Mapping[str, Any]) -> Sizes | None:
    """Return the published sizes; None if they must be written: they are absent or unreadable."""
    maximum = existing.get("maximumVolumeSize")
    try:
        return Sizes(parse(existing.get("capacity")), None if maximum is None else parse(maximum))
    except QuantityError:
        return None


def item_of(existing: Mapping[str, Any]) -> Item | None:
    """Return an object's item, or None if its selector is not a plain segment (CAP-051)."""
    selector = existing.get("nodeTopology") or {}
    if selector.get("matchExpressions"):
        return None
    return Item(existing.get("storageClassName", ""), make_term(selector.get("matchLabels") or {}))


def capacity_request(
    storage_class: Mapping[str, Any],
    segment: Term,
    *,
    has_topology: bool,
    always_send_topology: bool = False,
) -> GetCapacityRequest:
    """Return the GetCapacity request for an item (CAP-010, CAP-011).

    The class's parameters are sent unchanged; unlike in CreateVolume, these include the reserved
    `csi.storage.k8s.io/` keys. Capabilities and secrets are not sent.

    Args:
        storage_class: the StorageClass.
        segment: the item's segment.
        has_topology: whether the driver has VOLUME_ACCESSIBILITY_CONSTRAINTS. Without it the
            topology is left out, as the CSI spec requires.
        always_send_topology: whether to send the topology to a driver without this capability too,
            as csi-provisioner does.
    """
    request = GetCapacityRequest(parameters=storage_class.get("parameters") or {})
    if has_topology or always_send_topology:
        request.accessible_topology.CopyFrom(Topology(segments=dict(segment)))
    return request


def sizes_of(response: GetCapacityResponse) -> Sizes:
    """Return the sizes in a driver's response; `minimum_volume_size` is ignored (CAP-005)."""
    has_maximum = response.HasField("maximum_volume_size")
    return Sizes(
        response.available_capacity, response.maximum_volume_size.value if has_maximum else None
    )
