"""`csi-fleet audit`: leaked volumes and PVs without one. Deletes only what is confirmed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from csi_client.client import CsiClient
from csi_client.connection import CsiAddressError
from csi_client.errors import CsiError
from workers.cli import terminal
from workers.errors import ConfigError
from workers.explain.audit import Look, Report, compare
from workers.explain.stranded import is_stranded, stranded
from workers.explain.words import duration
from workers.kube import paths
from workers.migration.plugins import in_tree_source
from workers.migration.to_csi import volume_to_csi
from workers.queue.intents import IntentStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject

# As the provisioner's safekeeping writes them; importing it would load far more than this needs.
LABEL_INTENT = "csi-fleet.io/intent"
COPY_PREFIX = "csi-fleet-intent-"


def run(tools: Tools) -> int:
    """The command; 0 when nothing is wrong, 1 when something was found."""
    client, driver = connect(tools)
    try:
        report = audit(tools, client, driver)
        if tools.is_json:
            terminal.write_json(
                {
                    "driver": driver,
                    "orphans": report.orphans,
                    "missing": report.missing,
                    "undecided": report.undecided,
                    "stranded": {
                        name: {"claim": claim, "problem": problem}
                        for name, (claim, problem) in report.stranded.items()
                    },
                }
            )
        else:
            show(driver, report)
        if tools.settings.tool.delete:
            return delete(tools, client, report)
        if tools.settings.tool.forget:
            return forget(tools, report)
    except CsiError as error:
        raise ConfigError(f"driver {driver}: {error}", exit_code=1) from error
    finally:
        client.close()
    return 1 if report.orphans or report.missing or report.stranded else 0


def connect(tools: Tools) -> tuple[CsiClient, str]:
    """The driver behind --csi-address, which must be able to list its volumes.

    Raises:
        ConfigError: it is not there or cannot.
    """
    addresses = tools.settings.driver.csi_addresses
    if len(addresses) != 1:
        raise ConfigError("an audit is of one driver: give one --csi-address")
    try:
        client = CsiClient(
            addresses[0], timeout_seconds=tools.settings.driver.timeout_seconds, allow_tcp=True
        )
    except CsiAddressError as error:
        raise ConfigError(f"--csi-address {addresses[0]}: {error}") from error
    name, problem = "", ""
    try:
        wanted = tools.settings.tool.driver
        if client.wait_connected(5.0):
            name, _ = client.plugin_info()
            if wanted not in {"", name}:
                problem = f"driver {name} answers there, not {wanted}"
            elif "LIST_VOLUMES" not in client.controller_capabilities():
                problem = f"driver {name} cannot list its volumes (no LIST_VOLUMES)"
        else:
            problem = (
                "no driver answers; run the audit where its socket is, for example with kubectl "
                "exec in the worker's container"
            )
    except CsiError as error:
        problem = str(error)
    if problem:
        client.close()
        raise ConfigError(f"--csi-address {addresses[0]}: {problem}", exit_code=1)
    return client, name


def audit(tools: Tools, client: CsiClient, driver: str) -> Report:
    """Two looks, the grace time apart."""
    grace = tools.settings.tool.grace_seconds
    first = look(tools, client, driver)
    epoch = _epoch(tools)
    if not tools.is_json:
        terminal.write(
            f"driver {driver}: {len(first.listed)} volumes, {len(first.volumes)} PVs, "
            f"{len(first.in_flight)} attempts in flight; looking again in {duration(grace)}"
        )
    time.sleep(grace)
    second = look(tools, client, driver)
    if _epoch(tools) != epoch:
        raise ConfigError(
            "Redis lost its data during the audit, so attempts in flight are not all known; "
            "run it again in a minute",
            exit_code=1,
        )
    return compare(first, second)


def look(tools: Tools, client: CsiClient, driver: str) -> Look:
    """One look; the order of the reads is what makes it safe."""
    at = time.time()
    listed = {
        entry.volume.volume_id: entry.volume.capacity_bytes
        for page in client.list_volumes(max_entries=500)
        for entry in page.entries
    }
    intents = IntentStore(tools.redis)
    records = [
        (name, record)
        for name, record in (*intents.all().items(), *_copies(tools))
        if str(record.get("driver")) == driver
    ]
    in_flight = {
        name: float(record.get("since") or 0) for name, record in records if not is_stranded(record)
    }
    unsaved = frozenset(
        handle for pv in intents.all_pvs().values() if (handle := _handle(pv, driver)) is not None
    )
    volumes, deleting = {}, set()
    for volume in tools.kube.list(paths.VOLUMES):
        handle = _handle(volume, driver)
        if handle is None:
            continue
        volumes[handle] = (volume["metadata"]["name"], volume["metadata"]["uid"])
        phase = (volume.get("status") or {}).get("phase")
        if volume["metadata"].get("deletionTimestamp") or phase == "Released":
            deleting.add(handle)
    waiting = {one.volume: (one.key.object, one.problem) for one in stranded(records)}
    return Look(at, listed, in_flight, unsaved, volumes, frozenset(deleting), waiting)


def delete(tools: Tools, client: CsiClient, report: Report) -> int:
    """Deletes one listed volume after its id was given twice."""
    tool = tools.settings.tool
    if tool.delete not in report.orphans:
        raise ConfigError(
            f"--delete {tool.delete}: this audit does not list it as a volume without a PV; "
            "nothing is deleted",
            exit_code=1,
        )
    question = f"Type the id once more to delete volume {tool.delete} and its data for good: "
    if (tool.confirm or terminal.ask(question)) != tool.delete:
        raise ConfigError(
            f"not confirmed: give --confirm={tool.delete} too; nothing is deleted", exit_code=1
        )
    client.delete_volume(tool.delete, {})
    terminal.write(f"volume {tool.delete} is deleted")
    return 0


def forget(tools: Tools, report: Report) -> int:
    """Drops the record of one stranded attempt: its volume is somebody's by hand now."""
    name = tools.settings.tool.forget
    if name not in report.stranded:
        raise ConfigError(
            f"--forget {name}: this audit does not list it as stranded; nothing is forgotten",
            exit_code=1,
        )
    # The copy first: alone it would bring the record back.
    tools.kube.delete_config_map(tools.settings.kube.namespace, f"{COPY_PREFIX}{name}")
    IntentStore(tools.redis).finish(name)
    terminal.write(f"the attempt for volume {name} is forgotten")
    return 0


def show(driver: str, report: Report) -> None:
    """The report for a person."""
    if report.orphans:
        rows = [[volume_id, size or "-"] for volume_id, size in sorted(report.orphans.items())]
        terminal.write_table("volumes without a PV", ("VOLUME", "BYTES"), rows)
        terminal.write("delete one with --delete=ID --confirm=ID")
    if report.missing:
        rows = [[name, volume_id] for name, volume_id in sorted(report.missing.items())]
        terminal.write_table("PVs whose volume the driver does not list", ("PV", "VOLUME"), rows)
    if report.stranded:
        rows = [[name, *why] for name, why in sorted(report.stranded.items())]
        head = ("VOLUME", "CLAIM THAT IS GONE", "PROBLEM")
        terminal.write_table("attempts that nobody can end without you", head, rows)
        terminal.write(
            "bring back what is missing and run csi-fleet retry pvc NAMESPACE/NAME; or delete the "
            "volume, if there is one, and give --forget=VOLUME"
        )
    if report.undecided:
        terminal.write(
            f"{report.undecided} volumes without a PV are not judged: attempts in flight may own "
            "them; run the audit again later"
        )
    if not (report.orphans or report.missing or report.undecided or report.stranded):
        terminal.write(f"driver {driver}: every volume has its PV and every PV its volume")


def _copies(tools: Tools) -> list[tuple[str, Mapping[str, Any]]]:
    """Attempts that only a ConfigMap remembers."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for one in tools.kube.list_config_maps(tools.settings.kube.namespace, LABEL_INTENT):
        raw = (one.get("data") or {}).get("record", "")
        try:
            record = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            continue
        if isinstance(record, dict):
            found.append((one["metadata"]["name"].removeprefix(COPY_PREFIX), record))
    return found


def _handle(volume: JsonObject, driver: str) -> str | None:
    """The volume's id if it is one of this driver's, in-tree form included."""
    if in_tree_source(volume) is not None:
        volume = volume_to_csi(volume)
    csi = (volume.get("spec") or {}).get("csi") or {}
    return csi.get("volumeHandle") if csi.get("driver") == driver else None


def _epoch(tools: Tools) -> str:
    from workers.queue.catalog import CatalogWriter  # noqa: PLC0415 - the reader of the epoch

    return CatalogWriter(tools.redis).epoch()
