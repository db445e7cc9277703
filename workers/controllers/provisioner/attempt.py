"""One attempt to provision a claim: prepare, ask the driver, judge the answer (P-101, steps 5-24).

Everything up to the request is read anew in each attempt; only the topology is pinned (P-330).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from csi_client.errors import CsiError
from workers.controllers.provisioner import nodes, sourcing
from workers.controllers.provisioner.intent import Intent
from workers.engine.steps import Step
from workers.errors import AttemptError, DriverAway, State
from workers.kube.errors import RefusedError
from workers.migration.classes import dropped_parameters, is_migrated, translate_class
from workers.migration.to_in_tree import volume_to_in_tree
from workers.topology.affinity import node_affinity
from workers.topology.pin import Pin
from workers.topology.requirements import TopologyInputs, accessibility_requirements
from workers.translate import attributes_class, capability, claims, parameters, sources
from workers.translate import secrets as secret_rules
from workers.translate import volume as volume_rules
from workers.translate.fields import object_list, text_map
from workers.translate.names import volume_name
from workers.translate.outcome import create_volume_state
from workers.translate.request import build_request

if TYPE_CHECKING:
    from csi_client import messages as csi
    from workers.controllers.provisioner.claims import ClaimPass
    from workers.kube.objects import JsonObject
    from workers.translate.secrets import SecretRef, VolumeSecrets
    from workers.translate.sources import ContentSource

_log = logging.getLogger(__name__)

CLEAN_UP_TRIES = 5
EVENT_SOURCE_POPULATOR = "external-provisioner"


@dataclass(slots=True)
class Prepared:
    """A request ready to be sent and what its answer will be combined with."""

    request: csi.CreateVolumeRequest
    fs_type: str
    required_bytes: int
    pin: Pin | None
    secret_ref: SecretRef | None
    secrets: VolumeSecrets
    attributes_class: str
    migrated: bool


@dataclass(slots=True)
class Attempt:
    """One attempt for one claim, under the lease of its volume.

    Attributes:
        claim: live, or the remembered copy of a claim that is gone.
        storage_class: the original class, in-tree or not.
        is_rehearsal: only the request is wanted: nothing is marked, nobody is told (D-011).
        intent: what an earlier attempt left; None for a first one. Updated as this one goes on.
    """

    work: ClaimPass
    claim: JsonObject
    storage_class: JsonObject
    intent: Intent | None
    is_rehearsal: bool = False
    selected_node: str = field(init=False)
    was_sent: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.selected_node = claims.selected_node(self.claim)

    def run(self) -> JsonObject:
        """Returns the complete PV, already recorded in Redis.

        Raises:
            AttemptError: with the state that decides what follows.
            IgnoredError: the claim is not ours.
        """
        try:
            prepared = self.prepare()
        except AttemptError as error:
            # An earlier call may still run, so its record must not go (D-008).
            if self.intent is not None and error.state is not State.NO_CHANGE:
                raise AttemptError(error.message, State.NO_CHANGE) from error
            raise
        self.record_intent(prepared)
        volume = self.accept(prepared, self.create(prepared))
        self.work.runtime.steps.reach(Step.RECORD_VOLUME, self.work.lease)
        self.work.runtime.intents.created(self.work.lease.domain, self.current.record(), volume)
        return volume

    @property
    def current(self) -> Intent:
        """The intent of this attempt, once it is recorded."""
        if self.intent is None:
            raise AssertionError("the intent is recorded before anything needs it")
        return self.intent

    # Steps 5 to 21.

    def prepare(self) -> Prepared:
        """Everything that is checked and read before the driver is asked."""
        driver, claim = self.work.driver, self.claim
        if self.intent is None:
            claims.check_qualifies(claim, driver.name)
            if not self.is_rehearsal:
                nodes.check_owner(self.work, claim)
        gates = driver.settings.gates
        source = sources.normalise(claim, cross_namespace=gates.cross_namespace_volume_data_source)
        if source is not None:
            sourcing.check_grants(self.work, source)
        storage_class, migrated = self.translated_class()
        if source is not None:
            self.check_source(source)
        vac_name = attributes_class.attributes_class_name(
            claim, is_enabled=gates.volume_attributes_class
        )
        capability.check_driver(
            driver.plugin_capabilities,
            driver.controller_capabilities,
            source=source,
            needs_modify=bool(vac_name),
        )
        claims.check_selector(claim)
        settings = driver.settings
        name = volume_name(
            settings.provision.volume_name_prefix,
            settings.provision.volume_name_uuid_length,
            claim["metadata"].get("uid") or "",
        )
        values = text_map(storage_class, "parameters")
        fs_type = parameters.fstype(values, settings.provision.default_fstype)
        capabilities = capability.volume_capabilities(
            claim,
            storage_class,
            fs_type,
            multi_writer=driver.supports("SINGLE_NODE_MULTI_WRITER"),
        )
        content = self.content(source) if source is not None else None
        requirements, pin = self.topology(storage_class)
        return self.request(
            name=name,
            values=values,
            capabilities=capabilities,
            content=content,
            requirements=requirements,
            pin=pin,
            fs_type=fs_type,
            vac_name=vac_name,
            migrated=migrated,
        )

    def request(
        self,
        *,
        name: str,
        values: dict[str, str],
        capabilities: list[csi.VolumeCapability],
        content: ContentSource | None,
        requirements: csi.TopologyRequirement | None,
        pin: Pin | None,
        fs_type: str,
        vac_name: str,
        migrated: bool,
    ) -> Prepared:
        """Secrets, parameters, attributes class and the request itself (steps 18 to 22)."""
        driver, claim = self.work.driver, self.claim
        secret_ref = secret_rules.resolve(secret_rules.SecretKind.PROVISIONER, values, name, claim)
        data = self.secret_data(secret_ref) if secret_ref is not None else {}
        refs = secret_rules.resolve_volume_secrets(values, name, claim)
        stripped = parameters.strip(values)
        for line in parameters.deprecations(values):
            _log.warning("%s", line)
        if driver.settings.provision.extra_create_metadata:
            stripped |= parameters.extra_metadata(claim, name)
        mutable = self.attributes(vac_name) if vac_name else {}
        required = claims.requested_bytes(claim)
        built = build_request(
            name=name,
            required_bytes=required,
            capabilities=capabilities,
            parameters=stripped,
            secrets=data,
            content_source=content,
            requirements=requirements,
            mutable_parameters=mutable,
        )
        return Prepared(built, fs_type, required, pin, secret_ref, refs, vac_name, migrated)

    def translated_class(self) -> tuple[JsonObject, bool]:
        """Step 8: the class as the CSI driver understands it (P-602)."""
        driver = self.work.driver
        if driver.in_tree_name is None or not is_migrated(self.storage_class, driver.name):
            return self.storage_class, False
        _log.info("translating storage class for in-tree plugin %s to CSI", driver.in_tree_name)
        for key in dropped_parameters(self.storage_class, driver.in_tree_name):
            _log.warning("parameter %s of the in-tree class is dropped", key)
        return translate_class(self.storage_class, driver.in_tree_name), True

    def check_source(self, source: sources.DataSource) -> None:
        """Step 9, with the populator's event (P-209)."""
        try:
            sources.check_source(source)
        except sources.PopulatorSourceError as error:
            if self.is_rehearsal:
                raise
            self.work.runtime.events.event(
                self.claim,
                "Normal",
                "Provisioning",
                error.event_message,
                component=EVENT_SOURCE_POPULATOR,
            )
            raise

    def content(self, source: sources.DataSource) -> ContentSource:
        """Step 15; for a claim that is gone the source of the call before will do.

        While the claim lives its user sees what is wrong with the source (D-046).
        """
        try:
            return sourcing.resolve(self.work, self.claim, source, protect=not self.is_rehearsal)
        except AttemptError as error:
            if not self.work.is_orphaned:
                raise
            return sourcing.remembered(self.intent, error)

    def topology(
        self, storage_class: JsonObject, *, selected_node: str | None = None
    ) -> tuple[csi.TopologyRequirement | None, Pin | None]:
        """Step 17 (P-300)."""
        driver = self.work.driver
        if not driver.supports_topology:
            return None, None
        known = self.intent.pin if self.intent is not None else None
        return accessibility_requirements(
            TopologyInputs(
                driver_name=driver.name,
                claim_name=self.claim["metadata"]["name"],
                cluster=nodes.cluster(self.work),
                selected_node=selected_node or self.selected_node,
                allowed_topologies=object_list(storage_class, "allowedTopologies"),
                strict=driver.settings.provision.strict_topology,
                immediate=driver.settings.provision.immediate_topology,
            ),
            Pin.from_json(known) if known else None,
        )

    def secret_data(self, ref: SecretRef) -> dict[str, str]:
        """Step 18: the provisioner secret, read now and kept only for this call."""
        try:
            found = self.work.runtime.kube.get_secret(ref.namespace, ref.name)
        except RefusedError as error:
            raise secret_rules.read_failed(ref, error) from error
        return secret_rules.decode(found, ref)

    def attributes(self, name: str) -> dict[str, str]:
        """Step 21: the VolumeAttributesClass, read live (P-160)."""
        try:
            found = self.work.runtime.kube.get_attributes_class(name)
        except RefusedError as error:
            raise attributes_class.read_failed(error) from error
        return attributes_class.mutable_parameters(found, self.work.driver.name)

    # Steps 22 to 24.

    def record_intent(self, prepared: Prepared) -> None:
        """Before CreateVolume: from now on the attempt is finished by somebody, whatever dies."""
        work = self.work
        pin = prepared.pin.sent().to_json() if prepared.pin is not None else None
        self.intent = Intent.begin(
            key=work.key.text,
            driver=work.driver.name,
            claim=self.claim,
            selected_node=self.selected_node,
            pin=pin,
            previous=self.intent,
            source=sourcing.sent(prepared.request),
        )
        work.runtime.steps.reach(Step.RECORD_INTENT, work.lease)
        work.runtime.safekeeping.begin(work.lease, self.intent)
        work.record = self.intent

    def create(self, prepared: Prepared) -> csi.CreateVolumeResponse:
        """Step 22: the call, its errors classified (P-410)."""
        work = self.work
        work.runtime.steps.reach(Step.CREATE_VOLUME, work.lease)
        self.was_sent = True
        try:
            response = work.driver.client.create_volume(
                prepared.request,
                on_slow=self.keep_copy,
                timeout_seconds=work.driver.timeout_seconds(
                    "create", self.storage_class["metadata"].get("name", "")
                ),
            )
        except DriverAway:
            # It may have arrived: finished when the driver is back, without event or back-off.
            self.remember_background()
            raise
        except CsiError as error:
            raise AttemptError(str(error), self.state_of(error), code=error.code) from None
        return response

    def state_of(self, error: CsiError) -> State:
        """P-410; a status made by the transport says nothing about the storage (D-024)."""
        if error.from_transport:
            return State.FINISHED if error.is_final else State.BACKGROUND
        may_reschedule = self.work.driver.supports_topology and bool(self.selected_node)
        return create_volume_state(error.code, may_reschedule=may_reschedule)

    def keep_copy(self) -> None:
        """The call takes long: keep the intent outside of Redis too."""
        if self.work.lease.is_held() and not self.current.has_copy:
            self.work.runtime.steps.reach(Step.COPY_INTENT, self.work.lease)
            self.intent = self.work.runtime.safekeeping.copy(self.work.lease.domain, self.current)
            self.work.has_copy = self.current.has_copy

    def remember_background(self) -> None:
        """The end is not known: the record says so, in Redis and in a ConfigMap (P-401)."""
        if self.intent is not None:
            known = self.intent.in_background()
            self.work.runtime.steps.reach(Step.COPY_INTENT, self.work.lease)
            self.intent = self.work.runtime.safekeeping.copy(self.work.lease.domain, known)
            self.work.has_copy = self.intent.has_copy

    def accept(self, prepared: Prepared, response: csi.CreateVolumeResponse) -> JsonObject:
        """Steps 23 and 24: checks, clean-up of what is not usable, the PV."""
        rejection = volume_rules.check_response(prepared.request, response)
        if rejection is not None:
            problem = self.clean_up(prepared, rejection.volume_id)
            error = rejection.error(problem)
            # Nothing is left once the clean-up worked, so nothing is in progress (D-009).
            raise error if problem else AttemptError(error.message, State.FINISHED)
        driver, volume = self.work.driver, response.volume
        affinity = None
        if driver.supports_topology:
            affinity = node_affinity(volume.accessible_topology)
        built = volume_rules.build_volume(
            name=prepared.request.name,
            driver_name=driver.name,
            identity=driver.identity,
            claim=self.claim,
            storage_class=self.storage_class,
            volume=volume,
            required_bytes=prepared.required_bytes,
            fs_type=prepared.fs_type,
            provisioner_secret=prepared.secret_ref,
            secrets=prepared.secrets,
            node_affinity=affinity,
            attributes_class=prepared.attributes_class,
            read_only=capability.is_read_only(
                list(prepared.request.volume_capabilities),
                controller_publish_readonly=driver.settings.provision.controller_publish_readonly,
            ),
        )
        if prepared.migrated:
            built = self.to_in_tree(prepared, built, volume.volume_id)
        return volume_rules.complete_volume(
            built, claim=self.claim, storage_class=self.storage_class
        )

    def to_in_tree(self, prepared: Prepared, built: JsonObject, volume_id: str) -> JsonObject:
        """Step 24 of a migrated class; a volume that cannot be named is deleted (P-605, D-001)."""
        try:
            return volume_to_in_tree(built, self.work.driver.name)
        except AttemptError as error:
            problem = self.clean_up(prepared, volume_id)
            state = State.FINISHED if problem is None else State.BACKGROUND
            raise AttemptError(error.message, state) from error

    def clean_up(self, prepared: Prepared, volume_id: str) -> CsiError | None:
        """Deletes a volume that must not stay (P-430): five tries within one `--timeout`.

        Returns:
            None once it is gone, else the last error.
        """
        client, last = self.work.driver.client, None
        end = time.monotonic() + self.work.driver.settings.driver.timeout_seconds
        for _ in range(CLEAN_UP_TRIES):
            self.work.runtime.steps.reach(Step.CLEAN_UP, self.work.lease)
            try:
                client.delete_volume(
                    volume_id,
                    dict(prepared.request.secrets),
                    timeout_seconds=max(0.001, end - time.monotonic()),
                )
            except CsiError as error:
                last = error
            else:
                return None
            if time.monotonic() >= end:  # nothing is sent after the deadline
                break
        return last
