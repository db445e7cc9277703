"""Parses and builds the volume handles of each cloud (P-606, P-610).

If a handle does not have the expected form, the functions raise HandleError with upstream's exact
message.
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
    """A handle, disk or attribute has an unexpected form; the message is upstream's."""


def atoi(text: str) -> int:
    """Parse a decimal integer as strictly as Go's `strconv.Atoi`, with the same error message.

    Python's int() would also accept spaces, underscores and digits of other scripts.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    if not _ATOI.fullmatch(text):
        raise HandleError(f"strconv.Atoi: parsing {quoted}: invalid syntax")
    number = int(text)
    if not -_INT64_LIMIT <= number < _INT64_LIMIT:
        raise HandleError(f"strconv.Atoi: parsing {quoted}: value out of range")
    return number


def gce_disk_name(handle: str) -> str:
    """Return the disk's name from `projects/<p>/zones/<z>/disks/<disk>`: the sixth part."""
    parts = handle.split("/")
    if len(parts) < _GCE_PARTS:
        # Upstream's message also ends with a blank.
        raise HandleError(
            f"failed to get id components.Got: {len(parts)}, wanted 6 components or more. "
        )
    return parts[_GCE_DISK_PART]


def gce_handle(disk: str, zone_label: str) -> str:
    """Return the handle for an in-tree disk; the project is unknown, so it is left to the driver.

    Args:
        disk: the name of the disk.
        zone_label: the zones joined with `__`: one zone for a zonal disk, several for a
            regional disk. If it is empty, the zone is left unspecified as well.
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
    """Return `vol-1` for `aws://us-west-2b/vol-1` and `aws:///vol-1`; other forms are unchanged."""
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
    """Return the disk's name from the resource id of a managed disk or the URL of a page blob."""
    is_url = len(uri) > len("http") and uri[:4].lower() == "http"
    form = _AZURE_UNMANAGED if is_url else _AZURE_MANAGED
    found = form.search(uri)
    if found is None:
        raise HandleError(f"could not get disk name from {uri}, correct format: {form.pattern}")
    return found[1]


def azure_file_parts(handle: str) -> tuple[str, str, str]:
    """Return (resource group, account, share) from `<rg>#<account>#<share>[#...]`."""
    parts = handle.split("#")
    if len(parts) < 3:
        quoted = json.dumps(handle, ensure_ascii=False)
        raise HandleError(f"error parsing volume id: {quoted}, should at least contain two #")
    return parts[0], parts[1], parts[2]


def azure_account(secret_name: str) -> str:
    """Return the storage account in a secret's name, or the whole name if there is none."""
    found = _AZURE_ACCOUNT.search(secret_name)
    return found[1] if found else secret_name
