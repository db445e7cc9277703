"""What do the volume handles of each cloud look like, and what is inside them (P-606, P-610)?

Every function raises HandleError with upstream's exact text when the handle has another form.
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import urlsplit

from workers.migration.regions import RegionError, gce_region
from workers.migration.zones import ZONE_DELIMITER

_INT64_LIMIT: Final = 2**63
_ATOI: Final = re.compile(r"[+-]?[0-9]+")

_GCE_PARTS: Final = 6
_GCE_DISK_PART: Final = 5
_AWS_SCHEME: Final = "aws://"
_AWS_VOLUME: Final = re.compile(r"vol-[^/]*")
_AZURE_MANAGED: Final = re.compile(
    r".*/subscriptions/(?:.*)/resourceGroups/(?:.*)/providers/Microsoft.Compute/disks/(.+)"
)
_AZURE_UNMANAGED: Final = re.compile(r"http(?:.*)://(?:.*)/vhds/(.+)")
_AZURE_ACCOUNT: Final = re.compile(r"azure-storage-account-(.+)-secret")


class HandleError(ValueError):
    """A handle, disk or attribute of unknown form; the text is upstream's."""


def atoi(text: str) -> int:
    """A decimal integer with Go's strictness and error text (`strconv.Atoi`).

    Python's int() would also take spaces, underscores and other scripts' digits.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    if not _ATOI.fullmatch(text):
        raise HandleError(f"strconv.Atoi: parsing {quoted}: invalid syntax")
    number = int(text)
    if not -_INT64_LIMIT <= number < _INT64_LIMIT:
        raise HandleError(f"strconv.Atoi: parsing {quoted}: value out of range")
    return number


def gce_disk_name(handle: str) -> str:
    """The disk of `projects/<p>/zones/<z>/disks/<disk>`: the sixth part."""
    parts = handle.split("/")
    if len(parts) < _GCE_PARTS:
        # The blank at the end is upstream's.
        raise HandleError(
            f"failed to get id components.Got: {len(parts)}, wanted 6 components or more. "
        )
    return parts[_GCE_DISK_PART]


def gce_handle(disk: str, zone_label: str) -> str:
    """The handle of an in-tree disk; the project is unknown, the driver fills it in.

    Args:
        disk: name of the disk.
        zone_label: zones joined with `__`; one is a zonal disk, several a regional one, empty
            leaves the zone unspecified too.
    """
    zones = zone_label.split(ZONE_DELIMITER)
    if len(zones) == 1:
        return f"projects/UNSPECIFIED/zones/{zones[0] or 'UNSPECIFIED'}/disks/{disk}"
    try:
        region = gce_region(zones)
    except RegionError as error:
        raise HandleError(f"failed to get region from zones: {error}") from error
    return f"projects/UNSPECIFIED/regions/{region}/disks/{disk}"


def aws_volume_id(volume_id: str) -> str:
    """`aws://us-west-2b/vol-1` and `aws:///vol-1` are `vol-1`; other forms are ids already."""
    if not volume_id.startswith(_AWS_SCHEME):
        return volume_id
    try:
        path = urlsplit(volume_id).path.strip("/")
    except ValueError as error:
        raise HandleError(f"Invalid disk name ({volume_id}): {error}") from error
    if not _AWS_VOLUME.fullmatch(path):
        raise HandleError(f"Invalid format for AWS volume ({volume_id})")
    return path


def azure_disk_name(uri: str) -> str:
    """The disk's name inside a managed disk's resource id or a page blob's URL."""
    is_url = len(uri) > len("http") and uri[:4].lower() == "http"
    form = _AZURE_UNMANAGED if is_url else _AZURE_MANAGED
    found = form.search(uri)
    if found is None:
        raise HandleError(f"could not get disk name from {uri}, correct format: {form.pattern}")
    return found[1]


def azure_file_parts(handle: str) -> tuple[str, str, str]:
    """(resource group, account, share) of `<rg>#<account>#<share>[#...]`."""
    parts = handle.split("#")
    if len(parts) < 3:
        quoted = json.dumps(handle, ensure_ascii=False)
        raise HandleError(f"error parsing volume id: {quoted}, should at least contain two #")
    return parts[0], parts[1], parts[2]


def azure_account(secret_name: str) -> str:
    """The storage account named by a secret; a secret of another form names it itself."""
    found = _AZURE_ACCOUNT.search(secret_name)
    return found[1] if found else secret_name
