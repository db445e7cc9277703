"""`csi-fleet audit`: finds leaked volumes and snapshots, and objects whose volume is gone.

Nothing is deleted without a confirmation.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.cli import drivertools, snapshotaudit, terminal
from workers.constants import LABEL_INTENT
from workers.drivers.link import tls_trouble
from workers.errors import ConfigError
from workers.explain.audit import Look, Report, compare
from workers.explain.stranded import is_stranded, stranded
from workers.explain.words import duration
from workers.kube import paths
from workers.migration.to_csi import storage_of
from workers.queue.copies import FIELD_RECORD, NAME_PREFIX
from workers.queue.inspect import read_life
from workers.queue.intents import IntentStore
from workers.queue.keys import Key
from workers.topology.affinity import is_accessible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from csi_client.client import CsiClient
    from workers.cli.tools import Tools
    from workers.config.toolflags import ToolSettings
    from workers.kube.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Words:
    """The words that messages use for volumes or snapshots, and for their cluster objects."""

    thing: str
    owner: str

    @property
    def upper(self) -> str:
        """The heading of the column that contains the ids."""
        return self.thing.upper()


VOLUMES: Final = Words("volume", "PV")
SNAPSHOTS: Final = Words("snapshot", "content")


def run(tools: Tools) -> int:
    """Run the command; return 0 if nothing is wrong, 1 if something was found."""
    check_confirmed(tools.settings.tool)
    client, driver = connect(tools)
    try:
        obstacle = snapshotaudit.obstacle(tools, client)
        report, snapshots = audit(tools, client, driver, has_snapshots=not obstacle)
        if tools.is_data:
            tools.write("Audit", as_fields(driver, report, snapshots, obstacle))
        else:
            show(driver, report)
            show_snapshots(driver, snapshots, obstacle)
        if tools.settings.tool.delete:
            return delete(tools, client, report, snapshots)
        if tools.settings.tool.forget:
            return forget(tools, report)
    except CsiError as error:
        raise ConfigError(f"driver {driver}: {error}", exit_code=1) from error
    finally:
        client.close()
    is_clean = not (report.stranded or any(r.orphans or r.missing for r in (report, snapshots)))
    return 0 if is_clean else 1


def check_confirmed(tool: ToolSettings) -> None:
    """Check the confirmation before the command reads or waits for anything.

    Raises:
        ConfigError: --delete is given without its --confirm, and there is no terminal.
    """
    if tool.confirm == tool.delete or (not tool.confirm and terminal.can_ask()):
        return
    what = f"--confirm={tool.delete} too" if tool.delete else "--delete with --confirm"
    raise ConfigError(f"the deletion is not confirmed, so nothing was deleted. Add {what}")


def as_fields(driver: str, report: Report, snapshots: Report, obstacle: str) -> dict[str, Any]:
    """Return the report as data, for programs."""
    return {
        "driver": driver,
        "orphans": report.orphans,
        "missing": report.missing,
        "undecided": report.undecided,
        "stranded": {
            name: {"claim": claim, "problem": problem}
            for name, (claim, problem) in report.stranded.items()
        },
        "snapshots": {
            "orphans": snapshots.orphans,
            "missing": snapshots.missing,
            "undecided": snapshots.undecided,
            "not_audited": obstacle,
        },
    }


def connect(tools: Tools) -> tuple[CsiClient, str]:
    """Connect to the driver, which must be able to list its volumes.

    Raises:
        ConfigError: the driver does not answer, is a different driver, or cannot list volumes.
    """
    settings, wanted = tools.settings.driver, tools.settings.tool.driver
    spec = drivertools.the_one(settings, wanted)
    client = drivertools.open_client(spec, settings.timeout_seconds)
    name, problem = "", ""
    try:
        wanted = wanted or spec.name
        if client.wait_connected(drivertools.CONNECT_SECONDS):
            name, _ = client.plugin_info()
            if wanted not in {"", name}:
                problem = f"driver {name} answers at this endpoint, not {wanted}"
            elif "LIST_VOLUMES" not in client.controller_capabilities():
                problem = f"driver {name} cannot list its volumes (no LIST_VOLUMES)"
        else:
            problem = tls_trouble(spec) or (
                "no driver answers. Run the audit where the driver can be reached, for example "
                "with kubectl exec in the worker's container"
            )
    except CsiError as error:
        problem = str(error)
    if problem:
        client.close()
        raise ConfigError(f"driver at {spec.endpoint}: {problem}", exit_code=1)
    return client, name


def audit(
    tools: Tools, client: CsiClient, driver: str, *, has_snapshots: bool
) -> tuple[Report, Report]:
    """Compare volumes and snapshots in two passes, with the grace time between them."""
    looks: list[Callable[[Tools, CsiClient, str], Look]] = [look]
    if has_snapshots:
        looks.append(snapshotaudit.look)
    grace = tools.settings.tool.grace_seconds
    first = [one(tools, client, driver) for one in looks]
    epoch = read_life(tools.redis)
    if not tools.is_data:
        for words, found in zip((VOLUMES, SNAPSHOTS), first, strict=False):
            terminal.write(
                f"driver {driver}: {len(found.listed)} {words.thing}s, {len(found.volumes)} "
                f"{words.owner}s, {len(found.in_flight)} attempts in flight"
            )
        terminal.write(f"checking again in {duration(grace)}")
    time.sleep(grace)
    second = [one(tools, client, driver) for one in looks]
    if read_life(tools.redis) != epoch:
        raise ConfigError(
            "Redis lost its data during the audit, so not all attempts in flight are known. Run "
            "the audit again in a minute",
            exit_code=1,
        )
    reports = [compare(*pair) for pair in zip(first, second, strict=True)]
    return reports[0], reports[1] if has_snapshots else Report({}, {})


def look(tools: Tools, client: CsiClient, driver: str) -> Look:
    """Make one pass over volumes, reading in an order that makes it safe to compare two passes."""
    at = time.time()
    listed = {
        entry.volume.volume_id: entry.volume.capacity_bytes
        for page in client.list_volumes(max_entries=500)
        for entry in page.entries
    }
    stores = list(IntentStore(tools.redis).everywhere())
    kept = [item for store in stores for item in store.all().items()]
    records = [
        (volume_of(name, record), record)
        for name, record in (*kept, *_copies(tools).values())
        if str(record.get("driver")) == driver and _is_here(tools, record)
    ]
    in_flight = {
        name: float(record.get("since") or 0) for name, record in records if not is_stranded(record)
    }
    # No worker saves the PV of a stranded attempt, so its volume is listed, and can be deleted.
    left = {name for name, record in kept if is_stranded(record)}
    unsaved = frozenset(
        handle
        for store in stores
        for name, pv in store.all_pvs().items()
        if name not in left and (handle := _handle(pv, driver)) is not None
    )
    volumes, deleting, elsewhere = {}, set(), set()
    segments = _segments(tools, client)
    for volume in tools.kube.list(paths.VOLUMES):
        handle = _handle(volume, driver)
        if handle is None:
            continue
        volumes[handle] = (volume["metadata"]["name"], volume["metadata"]["uid"])
        phase = (volume.get("status") or {}).get("phase")
        if volume["metadata"].get("deletionTimestamp") or phase == "Released":
            deleting.add(handle)
        if not is_accessible(volume, segments):
            elsewhere.add(volume["metadata"]["name"])
    waiting = {one.volume: (one.key.object, one.problem) for one in stranded(records)}
    return Look(
        at,
        listed,
        in_flight,
        unsaved,
        volumes,
        deleting=frozenset(deleting),
        stranded=waiting,
        elsewhere=frozenset(elsewhere),
    )


def _is_here(tools: Tools, record: Mapping[str, Any]) -> bool:
    """Return True if the attempt may have created a volume in this driver's storage backend."""
    node = tools.settings.node
    try:
        return not node.enabled or Key.parse(str(record.get("key"))).node in {"", node.node_name}
    except ValueError:
        return True


def _segments(tools: Tools, client: CsiClient) -> Mapping[str, str]:
    """Return the topology of the driver's node in node deployment; else {}.

    An empty mapping matches all PVs.
    """
    if not tools.settings.node.enabled:
        return {}
    return client.node_info().accessible_topology.segments


def delete(tools: Tools, client: CsiClient, report: Report, snapshots: Report) -> int:
    """Delete one reported volume or snapshot after the user has given its id twice."""
    tool = tools.settings.tool
    kinds = [
        words
        for words, found in ((VOLUMES, report), (SNAPSHOTS, snapshots))
        if tool.delete in found.orphans
    ]
    if len(kinds) != 1:
        problem = (
            "this audit does not list it as a volume without a PV or a snapshot without a content"
            if not kinds
            else "a volume and a snapshot have this id"
        )
        raise ConfigError(f"--delete {tool.delete}: {problem}; nothing was deleted", exit_code=1)
    thing = kinds[0].thing
    question = f"Type the id once more to permanently delete {thing} {tool.delete} and its data: "
    if (tool.confirm or terminal.ask(question)) != tool.delete:
        raise ConfigError(
            f"the deletion is not confirmed: add --confirm={tool.delete}; nothing was deleted",
            exit_code=1,
        )
    if kinds[0] is VOLUMES:
        client.delete_volume(tool.delete, {})
    else:
        request = csi.DeleteSnapshotRequest(snapshot_id=tool.delete)
        client.call("Controller/DeleteSnapshot", request, csi.DeleteSnapshotResponse)
    terminal.write(f"{thing} {tool.delete} was deleted")
    return 0


def forget(tools: Tools, report: Report) -> int:
    """Drop the record of one stranded attempt.

    From then on, the user is responsible for the attempt's volume.
    """
    name = tools.settings.tool.forget
    if name not in report.stranded:
        raise ConfigError(
            f"--forget {name}: this audit does not list it as stranded, so nothing was forgotten",
            exit_code=1,
        )
    # Delete the copies in ConfigMaps first, because an intent is restored from its copy.
    for copy, (domain, record) in _copies(tools).items():
        if volume_of(domain, record) == name:
            tools.kube.delete_config_map(tools.settings.kube.namespace, copy)
    for intents in IntentStore(tools.redis).everywhere():
        for domain, record in intents.all().items():
            if volume_of(domain, record) == name:
                intents.finish(domain)
    terminal.write(f"the record of the attempt for volume {name} was dropped")
    return 0


def show(driver: str, report: Report) -> None:
    """Print the report on volumes."""
    _show_tables(VOLUMES, report)
    if report.stranded:
        rows = [[name, *why] for name, why in sorted(report.stranded.items())]
        head = ("VOLUME", "DELETED CLAIM", "PROBLEM")
        terminal.write_table(
            "stranded attempts, which csi-fleet cannot finish without you", head, rows
        )
        terminal.write(
            "Recreate what is missing, then run csi-fleet retry pvc NAMESPACE/NAME. Or delete the "
            "volume, if there is one, then repeat the audit with --forget=VOLUME."
        )
    if not (report.orphans or report.missing or report.undecided or report.stranded):
        terminal.write(f"driver {driver}: every volume has its PV and every PV its volume")


def show_snapshots(driver: str, report: Report, obstacle: str) -> None:
    """Print the report on snapshots."""
    if obstacle:
        terminal.write(f"driver {driver}: snapshots are not audited because {obstacle}")
        return
    _show_tables(SNAPSHOTS, report)
    if not (report.orphans or report.missing or report.undecided):
        terminal.write(
            f"driver {driver}: every snapshot has its content and every content its snapshot"
        )


def _show_tables(words: Words, report: Report) -> None:
    thing, owner = words.thing, words.owner
    if report.orphans:
        rows = [[found, size or "-"] for found, size in sorted(report.orphans.items())]
        terminal.write_table(f"{thing}s without a {owner}", (words.upper, "BYTES"), rows)
        terminal.write(
            "To delete one of them, use --delete=ID --confirm=ID. If etcd was restored from a "
            "backup, first wait until csi-fleet pending -A lists no claim, because a claim may "
            "still request its volume again."
        )
    if report.missing:
        pairs = [[name, found] for name, found in sorted(report.missing.items())]
        title = f"{owner}s whose {thing} the driver does not list"
        terminal.write_table(title, (owner.upper(), words.upper), pairs)
    if report.undecided:
        terminal.write(
            f"{report.undecided} {thing}s without a {owner} were not judged because attempts in "
            "flight may own them. Run the audit again later."
        )


def _copies(tools: Tools) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the attempts that are copied to ConfigMaps: ConfigMap name -> (lock name, intent)."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for one in tools.kube.list_config_maps(tools.settings.kube.namespace, LABEL_INTENT):
        raw, name = (one.get("data") or {}).get(FIELD_RECORD, ""), one["metadata"]["name"]
        try:
            record = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            continue
        if isinstance(record, dict):
            domain = name.removeprefix(NAME_PREFIX)  # an open attempt, even with an unreadable key
            with suppress(ValueError):
                domain = Key.parse(str(record.get("key"))).record_name
            found[name] = domain, record
    return found


def volume_of(domain: str, record: Mapping[str, Any]) -> str:
    """Return the name of the volume that an attempt may have created.

    If the attempt has a node, `@` and the node's name follow.
    """
    named, _, node = domain.partition("@")
    volume = str(record.get("volume") or named)
    return f"{volume}@{node}" if node else volume


def _handle(volume: JsonObject, driver: str) -> str | None:
    """Return the volume's id if it belongs to this driver, else None."""
    name, handle = storage_of(volume)
    return handle or None if name == driver else None
