"""Reads the facts for `explain` from the API server and Redis, with at most a dozen requests.

If the caller lacks a permission, only the facts that require this permission are missing. If the
API server does not answer, reading fails.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from workers.controllers.data_source_validator.decide import populator_of, wanted_kind
from workers.controllers.provisioner.filters import keys_of_volume
from workers.controllers.provisioner.served import Drivers
from workers.errors import ApiError, AttemptError
from workers.explain.facts import (
    ClaimFacts,
    NodeFacts,
    Quota,
    SecretFacts,
    Source,
    VolumeFacts,
)
from workers.explain.quietly import quiet_list, quietly
from workers.explain.serving import PROVISIONER, Served, kept, of_controller
from workers.explain.words import nearest, stamp
from workers.kube import paths
from workers.kube.errors import ForbiddenError, NotFoundError, Unreachable
from workers.migration import plugins
from workers.queue.driverrecords import complete
from workers.queue.inspect import read_key
from workers.queue.keys import claim_key, volume_key
from workers.translate import parameters
from workers.translate import secrets as secret_rules
from workers.translate.claims import claim_class_name, provisioner_annotation, selected_node
from workers.translate.fields import is_deleting, text, text_map
from workers.translate.names import volume_name
from workers.translate.quantity import QuantityError, parse
from workers.translate.sources import normalise
from workers.translate.volume_facts import facts_of, owner_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.cli.tools import Tools
    from workers.kube.objects import JsonObject
    from workers.kube.resources import KubeResources


QUOTAS: Final = paths.Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
CSI_DRIVERS: Final = paths.Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
# How the names of the resources that a ResourceQuota limits end, for claims and snapshots. For
# claims, the name may begin with the name of a class.
OF_CLAIMS: Final = ("persistentvolumeclaims", "requests.storage")
OF_SNAPSHOTS: Final = ("count/volumesnapshots.snapshot.storage.k8s.io",)
# The maximum number of namespaces that a hint names.
_OTHERS: Final = 3
# The maximum length at which a kind is shown, because a claim can name any kind.
_SHOWN: Final = 100
# The reason of a workload controller's events if it cannot create a pod or a claim. Their message
# names the object.
_NOT_CREATED: Final = "FailedCreate"
_OF_A_CLAIM: Final = re.compile(r"persistentvolumeclaim|\bPVC\b|\bClaim\b", re.IGNORECASE)
_WORD: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_CLUSTER_SOURCES: Final = frozenset({"persistentvolume-controller"})


class Gatherer:
    """Reads the facts about claims and volumes.

    Args:
        tools: connections to the API server (read permission is enough) and to the queue's Redis.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._kube = tools.kube

    def claim(self, namespace: str, name: str) -> ClaimFacts:
        """Return the facts about one claim.

        Raises:
            ApiError: the API server does not answer, or refuses to show the claim.
            QueueUnavailable: Redis does not answer.
        """
        facts = ClaimFacts(namespace, name, now=time.time())
        try:
            claim = self._kube.get_claim(namespace, name)
        except NotFoundError:
            return replace(
                facts,
                refusal=self._refusal(namespace, name),
                quotas=self.quotas(namespace),
                hint=elsewhere(self._kube, namespace, name),
            )
        class_name = claim_class_name(claim)
        storage_class, unreadable = None, ""
        try:
            storage_class = self._class(class_name)
        except ForbiddenError as error:
            unreadable = str(error)
        records = self._tools.registry.alive()
        asked = provisioner_annotation(claim) if unreadable else None
        driver_name = driver_of(
            records, asked or str((storage_class or {}).get("provisioner") or "")
        )
        queue_name, record = find_driver(records, driver_name, selected_node(claim))

        uid = claim["metadata"]["uid"]
        key = claim_key(queue_name or driver_name, namespace, name, uid)
        pv_name = domain_of(record, uid)
        facts = replace(
            facts,
            claim=claim,
            class_name=class_name,
            names_class=(claim.get("spec") or {}).get("storageClassName") is not None,
            storage_class=storage_class,
            unreadable=unreadable,
            hint=""
            if storage_class or unreadable
            else quietly(lambda: self._class_hint(class_name), ""),
            driver_name=driver_name,
            driver=record,
            served=Served.by(records, PROVISIONER),
            state=read_key(self._tools.redis, key) if driver_name else None,
            watchers=len(self._tools.presence.alive()),
            workers=len(self._tools.presence.workers()),
            volume=self._volume_of(claim, pv_name),
            **_holds(self._tools, class_name),
        )
        if is_deleting(claim):
            facts = replace(facts, **self._pods(namespace, name))
        if (claim.get("status") or {}).get("phase") == "Bound":
            return facts
        return self._pending(facts, claim, pv_name)

    def _pending(self, facts: ClaimFacts, claim: JsonObject, pv_name: str) -> ClaimFacts:
        """Add the facts that only an unbound claim needs."""
        node = selected_node(claim)
        chosen = quietly(lambda: self._node(node), None) if node else None
        if chosen is None or not chosen.exists:
            facts = replace(facts, **self._pods(facts.namespace, facts.name))
        exists = None if facts.driver is not None else self.csi_driver_exists(facts.driver_name)
        return replace(
            facts,
            csi_driver_exists=exists,
            node=chosen,
            secret=self._secret(facts.storage_class, claim, pv_name),
            last_error=self._last_error(facts.namespace, claim["metadata"]["uid"]),
            warning=self._warning(facts.namespace, claim["metadata"]["uid"]),
            class_problem=_class_problem(facts.storage_class, claim, pv_name),
            missing_attributes_class=quietly(lambda: self._missing_attributes_class(claim), ""),
            **self._source(claim),
        )

    def _source(self, claim: JsonObject) -> dict[str, Any]:
        """Return the source that must fill the claim, and its populator.

        If no populator is needed, the result contains only what is wrong with the claim or
        snapshot to copy from.
        """
        kind = wanted_kind(claim)
        if kind is None:
            return quietly(lambda: self._copied(claim), {})
        name = text(claim, "spec", "dataSourceRef", "name")
        unknown: str | None = None
        return {
            "source": f"{kind.kind[:_SHOWN]}.{kind.group} {name}",
            "populator": quietly(
                lambda: populator_of(kind, self._kube.list(paths.POPULATORS)) or "", unknown
            ),
        }

    def _copied(self, claim: JsonObject) -> dict[str, Any]:
        source = normalise(claim, cross_namespace=True)
        if source is None or not (source.is_snapshot or source.is_claim):
            return {}
        resource = paths.SNAPSHOTS if source.is_snapshot else paths.CLAIMS
        name = f"{source.namespace}/{source.name}"
        try:
            found = self._kube.get(resource, source.name, namespace=source.namespace)
        except NotFoundError as error:
            is_missing = error.is_about(source.name)
            if not is_missing and self._kube.is_served(resource):
                return {}
            crd = "" if is_missing else f"{resource.plural}.{resource.group}"
            return {"missing_source": f"{source.kind} {name}", "missing_crd": crd}
        status = found.get("status") or {}
        is_ready = (
            status.get("readyToUse") if source.is_snapshot else status.get("phase") == "Bound"
        )
        if is_ready and not is_deleting(found):
            driver = quietly(lambda: self._driver_of(found), "")
            return {"source_driver": driver, "ready_source": f"{source.kind} {name}"}
        waiting = Source(source.kind, name, is_deleting=is_deleting(found))
        return {"waiting_source": waiting}

    def _driver_of(self, source: JsonObject) -> str:
        """Return the driver that has a source's data; "" if it is unknown."""
        volume = text(source, "spec", "volumeName")
        if volume:
            return text(self._kube.get_volume(volume), "spec", "csi", "driver")
        content = text(source, "status", "boundVolumeSnapshotContentName")
        return text(self._kube.get_snapshot_content(content), "spec", "driver") if content else ""

    def _missing_attributes_class(self, claim: JsonObject) -> str:
        name = text(claim, "spec", "volumeAttributesClassName")
        try:
            if name:
                self._kube.get_attributes_class(name)
        except NotFoundError as error:
            return name if error.is_about(name) else ""
        return ""

    def volume(self, name: str) -> VolumeFacts:
        """Return the facts about one volume; raises the same errors as `claim`."""
        volume = self._volume(name)
        records = self._tools.registry.alive()
        owner, queue_name, record = find_owner(records, volume or {})

        class_name = claim_class_name(volume or {})
        facts = VolumeFacts(
            name,
            now=time.time(),
            volume=volume,
            owner=owner,
            driver=record,
            served=Served.by(records, PROVISIONER),
            state=read_key(
                self._tools.redis,
                volume_key(queue_name or owner, name, claim_namespace(volume or {})),
            ),
            watchers=len(self._tools.presence.alive()),
            workers=len(self._tools.presence.workers()),
            class_name=class_name,
            **_holds(self._tools, class_name),
        )
        if volume is None:
            return facts
        return replace(
            facts,
            attachments=quietly(lambda: self._attachments(name), {}),
            is_claim_deleting=quietly(lambda: self._is_claim_deleting(volume), default=False),
            last_error=self._last_error("default", volume["metadata"]["uid"]),
        )

    def _class(self, name: str) -> JsonObject | None:
        if not name:
            return None
        try:
            return self._kube.get_class(name)
        except NotFoundError:
            return None

    def _class_hint(self, name: str) -> str:
        return nearest(name, _names(self._kube.list(paths.STORAGE_CLASSES)))

    def _volume(self, name: str) -> JsonObject | None:
        try:
            return self._kube.get_volume(name)
        except NotFoundError:
            return None

    def _volume_of(self, claim: JsonObject, pv_name: str) -> JsonObject | None:
        """Return the claim's volume; None also if it must not be read and little depends on it.

        Raises:
            ForbiddenError: an unbound claim names a volume that the user must not read.
        """
        named = text(claim, "spec", "volumeName")
        try:
            return self._volume(named or pv_name)
        except ForbiddenError:
            if named and text(claim, "status", "phase") != "Bound":
                raise
            return None

    def csi_driver_exists(self, name: str) -> bool | None:
        """Return whether the CSIDriver object exists; None if that is unknown."""
        if not name:
            return None
        try:
            self._kube.get(CSI_DRIVERS, name)
        except NotFoundError:
            return False
        except Unreachable:
            raise
        except ApiError:
            return None
        return True

    def quotas(self, namespace: str, resources: tuple[str, ...] = OF_CLAIMS) -> tuple[Quota, ...]:
        """Return the exhausted limits of the namespace's quotas; empty if unreadable.

        Args:
            namespace: the namespace.
            resources: how the names of the limited resources end.
        """
        nothing: list[JsonObject] = []
        found = []
        for quota in quietly(lambda: list(self._kube.list(QUOTAS, namespace=namespace)), nothing):
            status = quota.get("status") or {}
            used = status.get("used") or {}
            for resource, hard in (status.get("hard") or {}).items():
                if resource.endswith(resources) and _reached(used.get(resource, "0"), hard):
                    name = quota["metadata"]["name"]
                    found.append(Quota(name, resource, used.get(resource, "0"), hard))
        return tuple(found)

    def _refusal(self, namespace: str, name: str) -> tuple[str, str, str] | tuple[()]:
        """Return the newest event of a workload's controller that failed to create the claim.

        A StatefulSet's controller, for example, writes such events; () if there is none.
        """
        fields = f"reason={_NOT_CREATED},type=Warning"
        read = lambda: self._kube.list(paths.EVENTS, namespace=namespace, fieldSelector=fields)  # noqa: E731
        events = [
            one
            for one in quiet_list(read)
            if name in _WORD.findall(text(one, "message")) and _OF_A_CLAIM.search(one["message"])
        ]
        if not events:
            return ()
        newest = max(events, key=lambda one: stamp(text(one, "lastTimestamp")))
        about = newest["involvedObject"]
        return text(about, "kind").lower(), text(about, "name"), text(newest, "message")

    def _pods(self, namespace: str, claim_name: str) -> dict[str, Any]:
        """Return the facts about the pods that use the claim."""
        names: list[str] = []
        problem = node = ""
        nothing: list[JsonObject] = []
        read = lambda: list(self._kube.list_pods_using(namespace, claim_name))  # noqa: E731
        for pod in quietly(read, nothing):
            names.append(pod["metadata"]["name"])
            node = node or text(pod, "spec", "nodeName")
            for condition in (pod.get("status") or {}).get("conditions") or ():
                if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                    problem = problem or condition.get("message") or ""
        return {"pods": tuple(names), "pod_problem": problem, "pod_node": node}

    def _node(self, name: str) -> NodeFacts:
        try:
            labels = self._kube.get_node(name)["metadata"].get("labels") or {}
        except NotFoundError:
            return NodeFacts(name, exists=False)
        try:
            csi_node = self._kube.get_csi_node(name)
        except NotFoundError:
            return NodeFacts(name, exists=True, labels=labels)
        drivers = {
            one["name"]: tuple(one.get("topologyKeys") or ())
            for one in (csi_node.get("spec") or {}).get("drivers") or ()
        }
        return NodeFacts(name, exists=True, csi_drivers=drivers, labels=labels)

    def _secret(
        self, storage_class: JsonObject | None, claim: JsonObject, pv_name: str
    ) -> SecretFacts | None:
        """Check whether the provisioner secret exists, without reading its data."""
        if storage_class is None:
            return None
        kind = secret_rules.SecretKind.PROVISIONER
        try:
            ref = secret_rules.resolve(kind, text_map(storage_class, "parameters"), pv_name, claim)
        except AttemptError:
            return None  # the attempt itself reports what is wrong with the class
        if ref is None:
            return None
        try:
            self._kube.get_secret(ref.namespace, ref.name)
        except NotFoundError as error:
            return SecretFacts(ref.namespace, ref.name, str(error))
        except Unreachable:
            raise
        except ApiError:
            return SecretFacts(ref.namespace, ref.name, "")
        return SecretFacts(ref.namespace, ref.name, "")

    def _is_claim_deleting(self, volume: JsonObject) -> bool:
        ref = ("spec", "claimRef")
        if text(volume, "status", "phase") != "Bound" or not text(volume, *ref, "name"):
            return False
        try:
            claim = self._kube.get_claim(
                text(volume, *ref, "namespace"), text(volume, *ref, "name")
            )
        except NotFoundError:
            return False
        return is_deleting(claim)

    def _attachments(self, name: str) -> Mapping[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["nodeName"]
            for one in self._kube.list_attachments()
            if (one["spec"].get("source") or {}).get("persistentVolumeName") == name
        }

    def _warning(self, namespace: str, uid: str) -> str:
        return (self._last_error(namespace, uid, without=frozenset()) or ("", 0.0))[0]

    def _last_error(
        self, namespace: str, uid: str, without: frozenset[str] = _CLUSTER_SOURCES
    ) -> tuple[str, float] | None:
        """Return the newest warning event; Kubernetes's own are left out by default."""
        events = quiet_list(lambda: self._kube.list_warnings(namespace, uid))
        found = [
            (event.get("message") or "", stamp(event.get("lastTimestamp") or ""))
            for event in events
            if (event.get("source") or {}).get("component") not in without
        ]
        return max(found, key=lambda one: one[1], default=None)


def _class_problem(storage_class: JsonObject | None, claim: JsonObject, pv_name: str) -> str:
    """Return an attempt's error message about the class's parameters; "" if they can be used."""
    if storage_class is None:
        return ""
    given = text_map(storage_class, "parameters")
    try:
        parameters.strip(given)
        for kind in secret_rules.SecretKind:
            secret_rules.resolve(kind, given, pv_name, claim)
    except AttemptError as error:
        return error.message
    return ""


def _holds(tools: Tools, class_name: str) -> dict[str, Any]:
    """Return the pause of the class, if there is one."""
    pause = tools.pauses.of_class(class_name) if class_name else None
    return {
        "class_pause": None if pause is None else pause.reason,
        "class_pause_until": 0.0 if pause is None else pause.until_ms / 1000,
    }


def elsewhere(kube: KubeResources, namespace: str, name: str) -> str:
    """Return a hint about where the claim might be, or "" if there is none.

    The hint names another namespace that has a claim of this name, or a claim in this namespace
    that has a similar name.
    """
    return quietly(lambda: _elsewhere(kube, namespace, name), "")


def _elsewhere(kube: KubeResources, namespace: str, name: str) -> str:
    same = kube.list(paths.CLAIMS, fieldSelector=f"metadata.name={name}")
    others = sorted(one["metadata"]["namespace"] for one in same)
    if others:
        more = ", ..." if len(others) > _OTHERS else ""
        return f" A claim of this name is in {', '.join(others[:_OTHERS])}{more}."
    return nearest(name, _names(kube.list(paths.CLAIMS, namespace=namespace)))


def driver_of(records: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return the CSI driver for a provisioner name (or an in-tree or additional name)."""
    owners = kept(records, "owners", lambda: _owners(records))
    plugin = plugins.of_in_tree(name)
    return owners.get(name) or (plugin.driver_name if plugin else name)


def _owners(records: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
    served = (complete(place, record) for place, record in records.items())
    return Drivers.of_records(served).owners


def find_driver(
    records: Mapping[str, Mapping[str, Any]], provisioner: str, node: str
) -> tuple[str, Mapping[str, Any] | None]:
    """Return the queue name and registration of the driver that serves a provisioner.

    The result is ("", None) if there is no such driver. `node` is the node that the scheduler
    chose, "" for none. Drivers of other nodes are ignored.
    """
    driver = driver_of(records, provisioner)
    own = kept(records, "by name", lambda: _by_name(records)).get(driver, ()) if driver else ()
    found = [
        (name, record) for name, record in own if not node or (record.get("node") or node) == node
    ]
    return found[0] if found else ("", None)


def _by_name(
    records: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return the queue names and registrations of drivers, keyed by driver name.

    Drivers are left out if no worker provisions for them.
    """
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, record in sorted(of_controller(records, PROVISIONER).items()):
        found.setdefault(str(record.get("name")), []).append((name, record))
    return found


def domain_of(record: Mapping[str, Any] | None, uid: str) -> str:
    """Return the name of the claim's PV according to its driver's settings (P-121)."""
    rules = (record or {}).get("rules") or {}
    try:
        return volume_name(
            rules.get("volume_name_prefix", "pvc"), rules.get("volume_name_uuid_length", -1), uid
        )
    except AttemptError:
        return f"claim:{uid}"


def find_owner(
    records: Mapping[str, Mapping[str, Any]], volume: Mapping[str, Any]
) -> tuple[str, str, Mapping[str, Any] | None]:
    """Return the name, queue name and registration of the driver that owns a volume (L-071).

    If no worker provisions for that driver, the result is its expected name ("" if unknown), "" and
    None.
    """
    found = of_controller(records, PROVISIONER)
    served = [complete(place, record) for place, record in sorted(found.items())]
    for key in keys_of_volume(volume, Drivers.of_records(served)):
        record = next(one for one in served if one["queue_name"] == key.driver)
        return record["name"], key.driver, record
    names = [driver_of(records, name) for name in owner_names(facts_of(volume))]
    known = {str(record.get("name")) for record in records.values()}
    return next((name for name in names if name in known), (names or [""])[0]), "", None


def claim_namespace(volume: Mapping[str, Any]) -> str:
    """Return the namespace of the claim that a volume is bound to; "" if there is none.

    The namespace is part of the volume's key.
    """
    return str(((volume.get("spec") or {}).get("claimRef") or {}).get("namespace") or "")


def _names(items: Iterable[JsonObject]) -> list[str]:
    return [one["metadata"]["name"] for one in items]


def _reached(used: str, hard: str) -> bool:
    try:
        return parse(used) >= parse(hard)
    except QuantityError:
        return False
