"""Makes one CreateVolume call for a claim: prepares it, sends it and checks the response.

These are steps 5 to 24 of P-101. A first attempt reads everything that its request needs. A repeat
sends the recorded request; only the secrets are read again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from csi_client import answers
from csi_client.errors import ALREADY_EXISTS, CsiError, UnusableAnswerError
from workers.controllers.provisioner import nodes, sourcing
from workers.controllers.provisioner.intent import Request
from workers.controllers.provisioner.recorded import RecordedAttempt
from workers.engine.steps import Step
from workers.errors import AttemptError, DriverAway, State
from workers.kube.errors import RefusedError
from workers.migration.classes import dropped_parameters, is_migrated, translate_class
from workers.migration.to_csi import storage_of
from workers.migration.to_in_tree import volume_to_in_tree
from workers.observability.logging import get_logger
from workers.observability.requests import about_volume
from workers.topology import selectors
from workers.topology.affinity import node_affinity
from workers.topology.requirements import TopologyInputs, accessibility_requirements
from workers.translate import (
    attributes_class,
    capability,
    claim_metadata,
    claims,
    parameters,
    sources,
)
from workers.translate import secrets as secret_rules
from workers.translate import volume as volume_rules
from workers.translate.fields import object_list, selector_at, text, text_map
from workers.translate.names import volume_name
from workers.translate.outcome import create_volume_state
from workers.translate.request import build_request, recorded_request, repeated_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from csi_client import messages as csi
    from workers.controllers.provisioner.intent import Intent
    from workers.kube.objects import JsonObject
    from workers.translate.fields import Json
    from workers.translate.secrets import SecretRef, VolumeSecrets
    from workers.translate.sources import ContentSource

_log = get_logger(__name__)

CLEAN_UP_TRIES = 5
EVENT_SOURCE_POPULATOR = "external-provisioner"


@dataclass(slots=True)
class Prepared:
    """A request that is ready to be sent, and the facts needed to build a PV from the response."""

    request: csi.CreateVolumeRequest
    fs_type: str
    required_bytes: int
    secret_ref: SecretRef | None
    secrets: VolumeSecrets
    attributes_class: str
    migrated: bool


@dataclass(slots=True)
class Attempt(RecordedAttempt[Prepared, "csi.CreateVolumeResponse"]):
    """One CreateVolume call for one claim.

    Attributes:
        is_rehearsal: True to build the request only, without adding a finalizer or recording an
            event (D-011).
    """

    is_rehearsal: bool = False
    selected_node: str = field(init=False)

    def __post_init__(self) -> None:
        self.selected_node = claims.selected_node(self.claim)

    # Prepare the request: steps 5 to 21 of P-101.

    def prepare(self) -> Prepared:
        """Reads and checks everything that is needed before the driver is called."""
        driver, claim = self.work.driver, self.claim
        if self.intent is not None and self.intent.request:
            return self.repeat(self.intent, self.intent.request)
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
        name = self.work.recorded_name or volume_name(
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
        content = None
        if source is not None:
            content = sourcing.resolve(self.work, claim, source, protect=not self.is_rehearsal)
        requirements = self.topology(storage_class, source=content)
        return self.request(
            name=name,
            values=values,
            capabilities=capabilities,
            content=content,
            requirements=requirements,
            fs_type=fs_type,
            vac_name=vac_name,
            migrated=migrated,
        )

    def repeat(self, intent: Intent, recorded: JsonObject) -> Prepared:
        """Rebuilds the request of an earlier call from its record."""
        self.selected_node = intent.selected_node
        self.protect_source()
        storage_class, migrated = self.translated_class()
        values = text_map(storage_class, "parameters")
        request = repeated_request(recorded)
        name = request.name
        if name != self.work.volume:
            raise AttemptError(
                f"the record of volume {self.work.volume} contains a request for volume {name!r}. "
                "Check it with `csi-fleet audit`",
                State.NO_CHANGE,
            )
        secret_ref = secret_rules.resolve(
            secret_rules.SecretKind.PROVISIONER, values, name, intent.claim
        )
        if secret_ref is not None:
            request.secrets.update(self.secret_data(secret_ref))
        settings = self.work.driver.settings
        fs_types = [one.mount.fs_type for one in request.volume_capabilities if one.mount.fs_type]
        return Prepared(
            request=request,
            fs_type=fs_types[0] if fs_types else "",
            required_bytes=request.capacity_range.required_bytes,
            secret_ref=secret_ref,
            secrets=secret_rules.resolve_volume_secrets(values, name, intent.claim),
            attributes_class=attributes_class.attributes_class_name(
                intent.claim, is_enabled=settings.gates.volume_attributes_class
            ),
            migrated=migrated,
        )

    def protect_source(self) -> None:
        """Protects the source, if it still exists, while the driver copies from it.

        While the claim exists, a problem with the source is reported to the claim's user (D-046).
        Once the claim is gone, the problem is only logged and the call is repeated, because no user
        will get the data.
        """
        gates = self.work.driver.settings.gates
        cross = gates.cross_namespace_volume_data_source
        try:
            source = sources.normalise(self.claim, cross_namespace=cross)
            if source is not None and not self.work.is_orphaned:
                sourcing.check_grants(self.work, source)
            if source is not None:
                sourcing.resolve(self.work, self.claim, source)
        except AttemptError as error:
            if not self.work.is_orphaned:
                raise
            _log.warning(
                "repeating the CreateVolume call although its source is not usable", err=error
            )

    def request(
        self,
        *,
        name: str,
        values: dict[str, str],
        capabilities: list[csi.VolumeCapability],
        content: ContentSource | None,
        requirements: csi.TopologyRequirement | None,
        fs_type: str,
        vac_name: str,
        migrated: bool,
    ) -> Prepared:
        """Reads the secrets and the attributes class, and builds the request (steps 18 to 22)."""
        driver, claim = self.work.driver, self.claim
        secret_ref = secret_rules.resolve(secret_rules.SecretKind.PROVISIONER, values, name, claim)
        data = self.secret_data(secret_ref) if secret_ref is not None else {}
        refs = secret_rules.resolve_volume_secrets(values, name, claim)
        stripped = parameters.strip(values)
        for line in parameters.deprecations(values):
            _log.warning("the storage class has a deprecated parameter", warning=line)
        if driver.settings.provision.extra_create_metadata:
            stripped |= parameters.extra_metadata(claim, name)
        stripped |= claim_metadata.driver_parameters(
            claim,
            labels=driver.settings.provision.claim_labels_to_driver,
            annotations=driver.settings.provision.claim_annotations_to_driver,
        )
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
        return Prepared(built, fs_type, required, secret_ref, refs, vac_name, migrated)

    def translated_class(self) -> tuple[JsonObject, bool]:
        """Return the class in CSI form, and whether the class was migrated (step 8, P-602)."""
        driver = self.work.driver
        if driver.in_tree_name is None or not is_migrated(self.storage_class, driver.name):
            return self.storage_class, False
        _log.info("translating the storage class to CSI", plugin=driver.in_tree_name)
        for key in dropped_parameters(self.storage_class, driver.in_tree_name):
            _log.warning("dropped a parameter of the in-tree storage class", parameter=key)
        return translate_class(self.storage_class, driver.in_tree_name), True

    def check_source(self, source: sources.DataSource) -> None:
        """Checks the source's kind; records an event if a populator handles it (step 9, P-209)."""
        try:
            sources.check_source(source)
        except sources.PopulatorSourceError as error:
            if self.is_rehearsal:
                raise
            self.work.runtime.effects.event(
                self.claim,
                "Normal",
                "Provisioning",
                error.event_message,
                component=EVENT_SOURCE_POPULATOR,
            )
            raise

    def topology(
        self,
        storage_class: JsonObject,
        *,
        selected_node: str | None = None,
        source: ContentSource | None = None,
    ) -> csi.TopologyRequirement | None:
        """Return the topology requirement; None if there is no topology (step 17, P-300)."""
        driver = self.work.driver
        if not driver.supports_topology:
            return None
        return accessibility_requirements(
            TopologyInputs(
                driver_name=driver.name,
                claim_name=self.claim["metadata"]["name"],
                cluster=nodes.cluster(self.work),
                selected_node=selected_node or self.selected_node,
                allowed_topologies=self.allowed_topologies(storage_class, source),
                strict=driver.settings.provision.strict_topology,
                immediate=driver.settings.provision.immediate_topology,
            )
        )

    def allowed_topologies(
        self, storage_class: JsonObject, source: ContentSource | None
    ) -> Sequence[Json]:
        """Return the class's `allowedTopologies`, limited to where a snapshot is usable (P-343).

        They are not limited if a node is selected: the scheduler has then checked the node, or does
        not know the topology of snapshots.
        """
        allowed = object_list(storage_class, "allowedTopologies")
        if source is None or not source.node_affinity or self.selected_node:
            return allowed
        name = text(storage_class, "metadata", "name")
        try:
            usable = selectors.places(source.node_affinity)
            if allowed:
                usable = selectors.common_places(
                    selectors.places(selector_at(storage_class, "allowedTopologies")), usable
                )
        except selectors.TooManyPlacesError as error:
            message = (
                f"StorageClass {name} and the snapshot's content have {error} of topologies. Use "
                "fewer values"
            )
            raise AttemptError(message, State.NO_CHANGE) from error
        if not usable:
            message = (
                f"no compatible topology: allowedTopologies of StorageClass {name} and "
                "nodeAffinity of the snapshot's content have no place in common. Use a class that "
                "allows a place where the snapshot is usable, or another snapshot"
            )
            raise AttemptError(message, State.NO_CHANGE)
        return selectors.selector_of(usable)

    def secret_data(self, ref: SecretRef) -> dict[str, str]:
        """Reads the provisioner secret; its data is kept for this call only (step 18)."""
        try:
            found = self.work.runtime.kube.get_secret(ref.namespace, ref.name)
        except RefusedError as error:
            raise secret_rules.read_failed(ref, error) from error
        return secret_rules.decode(found, ref)

    def attributes(self, name: str) -> dict[str, str]:
        """Reads the VolumeAttributesClass live and returns its parameters (step 21, P-160)."""
        try:
            found = self.work.runtime.kube.get_attributes_class(name)
        except RefusedError as error:
            raise attributes_class.read_failed(error) from error
        return attributes_class.mutable_parameters(found, self.work.driver.name)

    # Send the request and check the response: steps 22 to 24 of P-101.

    def request_of(self, prepared: Prepared) -> Request:
        """Return the part of the request that a repeat must send again."""
        return Request(
            selected_node=self.selected_node,
            message=recorded_request(prepared.request),
            timeout_seconds=self.timeout_seconds,
        )

    @property
    def timeout_seconds(self) -> float:
        """The timeout of a CreateVolume call for this class."""
        driver, name = self.work.driver, self.storage_class["metadata"].get("name", "")
        own = driver.timeout_seconds("create", name)
        return driver.settings.driver.timeout_seconds if own is None else own

    def call(self, prepared: Prepared) -> csi.CreateVolumeResponse:
        """Calls CreateVolume; an error contains the resulting state (step 22, P-410)."""
        try:
            with about_volume(is_migrated=prepared.migrated):
                return self.work.runtime.effects.client(self.work.driver).create_volume(
                    prepared.request, on_slow=self.keep_copy, timeout_seconds=self.timeout_seconds
                )
        except DriverAway:
            # The call may have reached the driver. It is repeated, without an event or back-off,
            # once the driver is available again.
            self.remember_background()
            raise
        except UnusableAnswerError as error:
            raise self.unusable(prepared, error) from None
        except CsiError as error:
            state = self.state_of(error)
            if error.code == ALREADY_EXISTS and (earlier := self.current.with_earlier()):
                # The earlier call created the volume, so the driver expects that call's request.
                self.remember(earlier)
                state = State.BACKGROUND
            raise AttemptError(str(error), state, code=error.code) from None

    def state_of(self, error: CsiError) -> State:
        """Return the state for an error (P-410, D-024).

        A status code that the gRPC transport itself set says nothing about the storage system.
        """
        if error.from_transport:
            return State.FINISHED if error.is_final else State.BACKGROUND
        may_reschedule = self.work.driver.supports_topology and bool(self.selected_node)
        return create_volume_state(error.code, may_reschedule=may_reschedule)

    def accept(self, prepared: Prepared, answer: csi.CreateVolumeResponse) -> JsonObject:
        """Checks the response, deletes an unusable volume and builds the PV (steps 23 and 24)."""
        rejection = volume_rules.check_response(prepared.request, answer)
        if rejection is not None:
            raise self.rejected(prepared, rejection)
        driver, volume = self.work.driver, answer.volume
        affinity = None
        if driver.supports_topology:
            try:
                answers.check_topology(volume, driver=driver.name)
            except UnusableAnswerError as error:
                raise self.unusable(prepared, error) from None
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

    def rejected(self, prepared: Prepared, rejection: volume_rules.Rejection) -> AttemptError:
        """Deletes a volume that must not be kept, and returns the attempt's error."""
        problem = self.clean_up(prepared, rejection.volume_id)
        error = rejection.error(problem)
        # After a successful clean-up no volume is left, so nothing is in progress (D-009).
        return error if problem else AttemptError(error.message, State.FINISHED)

    def unusable(self, prepared: Prepared, error: UnusableAnswerError) -> AttemptError:
        """Return the error for a response that cannot be used, and deletes its volume (D-002).

        If the response has no volume id, nothing can be deleted; the intent is kept and the call is
        repeated.
        """
        self.remember(self.current.answered())
        if not error.made.strip():
            return AttemptError(str(error), State.BACKGROUND, code=error.code)
        name = prepared.request.name
        return self.rejected(
            prepared, volume_rules.Rejection(error.made, name, str(error), "Cleanup")
        )

    def to_in_tree(self, prepared: Prepared, built: JsonObject, volume_id: str) -> JsonObject:
        """Converts the PV to its in-tree form (step 24, P-605).

        If the in-tree form cannot name the volume, the volume is deleted (D-001).
        """
        try:
            return volume_to_in_tree(built, self.work.driver.name)
        except AttemptError as error:
            problem = self.clean_up(prepared, volume_id)
            state = State.FINISHED if problem is None else State.BACKGROUND
            raise AttemptError(error.message, state) from error

    def clean_up(self, prepared: Prepared, volume_id: str) -> CsiError | None:
        """Deletes a volume that must not be kept; tries up to 5 times within `--timeout` (P-430).

        Returns:
            None once the volume is gone, else the last error.

        Raises:
            AttemptError: a live PV of another claim names the volume, so it is in use.
        """
        work, name = self.work, self.work.driver.name
        if user := work.user_of(lambda other: storage_of(other) == (name, volume_id)):
            words = (
                f"the driver's response cannot be used, and volume {volume_id} is kept because "
                f"PersistentVolume {user} names it"
            )
            raise AttemptError(words, State.NO_CHANGE)
        client, last = self.work.runtime.effects.client(self.work.driver), None
        end = time.monotonic() + self.work.driver.settings.driver.timeout_seconds
        for _ in range(CLEAN_UP_TRIES):
            self.work.runtime.effects.reach(Step.CLEAN_UP, self.work.lease)
            try:
                with about_volume(is_migrated=prepared.migrated):
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
