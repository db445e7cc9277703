"""The frame of a reconcile of a snapshot or group snapshot: class, finalizers, content, status.

It contains the steps that both kinds share (SNC-020, SNG-002). `Words` contains the names and
messages of one kind; the abstract methods are the steps that differ. Everything is read live, and
each step sees the writes of the previous steps, so a single reconcile binds a new object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.work import ObjectPass
from workers.engine.live import Gone
from workers.engine.outcome import Outcome, done, retry, wait
from workers.errors import ApiError, AttemptError
from workers.kube.errors import AwayError, ConflictError, RefusedError
from workers.translate import snapshot_objects as objects
from workers.translate.fields import Json, annotations_of, is_deleting, optional_text, text
from workers.translate.snapshot_status import newly_created, newly_ready, snapshot_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.kube.objects import JsonObject
    from workers.kube.paths import Resource


@dataclass(frozen=True, slots=True)
class Words:
    """The names and messages for one of the two kinds.

    Attributes:
        subject: the first word of the kind's reasons and messages, such as `Snapshot`.
        noun: the name of the kind in running text, such as `snapshot`.
        contents, classes: the resources of the kind's contents and classes.
        class_words: the words for the class in the error message about a missing class.
        bound_field: the field of the object's status that holds the content's name.
        class_field: the field that holds the class's name, in the specs of object and content.
        ref_field: the field of the content's spec that refers to the object.
        default_annotation: the annotation of a default class.
        being_deleted: the annotation on a snapshot content whose object is being deleted.
        no_class: the start of the error message about a missing class.
        one_source: the error message for an object that does not have exactly one source.
    """

    subject: str
    noun: str
    contents: Resource
    classes: Resource
    class_words: str
    bound_field: str
    class_field: str
    ref_field: str
    default_annotation: str
    being_deleted: str
    no_class: str
    one_source: str


class BindingPass(ObjectPass, ABC):
    """One reconcile of an object that is bound to a snapshot content.

    `words` contains the names and messages for the object's kind.
    """

    words: ClassVar[Words]
    chosen_class: JsonObject | None = None

    # Steps that differ.

    @property
    @abstractmethod
    def named_content(self) -> str | None:
        """The name of the content that a pre-provisioned object's spec gives."""

    @property
    @abstractmethod
    def has_one_source(self) -> bool:
        """True if the object has exactly one source (SNC-020 row 3)."""

    @property
    @abstractmethod
    def needs_class(self) -> bool:
        """True if the object gets the default class when it names no class (SNC-011)."""

    @property
    @abstractmethod
    def computed_content(self) -> str:
        """The name of the content that is created for a dynamic object."""

    @abstractmethod
    def source_driver(self) -> str:
        """Return the driver of the source volume.

        Raises:
            AttemptError: the driver cannot be determined.
        """

    @abstractmethod
    def is_given(self, content: Json) -> bool:
        """True if the content is pre-provisioned, as a content that an object names must be."""

    @abstractmethod
    def is_made(self, content: Json) -> bool:
        """True if the content is dynamic, as a dynamic object's content must be."""

    @abstractmethod
    def complete_finalizers(self, content: JsonObject | None) -> None:
        """Checks the content and adds the finalizers that the object needs (SNC-030).

        Raises:
            Refusal: the content does not belong to this object.
        """

    @abstractmethod
    def find_or_make(self, content: JsonObject | None) -> JsonObject:
        """Return a dynamic object's content; creates it if it is missing (section 2.4)."""

    @abstractmethod
    def delete(self) -> Outcome:
        """Reconciles an object with a deletionTimestamp."""

    def begin(self) -> None:
        """Called right after the class has been chosen; does nothing by default."""

    def end(self) -> Outcome:
        """Return the outcome once the status has been copied."""
        return done("ready" if objects.is_ready(self.item) else "waits for its content")

    def owner_of(self, content: Json) -> str:
        """Return the name of the group snapshot to write to the status; "" for none."""
        del content
        return ""

    def told(self, operation: str, content: Json) -> None:
        """Called after one of the driver's operations has succeeded; does nothing by default."""

    # The reconcile.

    def run(self) -> Outcome:
        """Reconciles the object (SNC-002 and SNC-020).

        Raises:
            Gone: the object or its content has been deleted in the meantime.
        """
        try:
            return self.delete() if is_deleting(self.item) else self._sync()
        except Refusal as refusal:
            self.blame(refusal)
            return retry(refusal.reason)

    def _sync(self) -> Outcome:
        words = self.words
        self.choose_class()
        self.begin()
        if not self.has_one_source:
            raise Refusal(f"{words.subject}ValidationError", words.one_source)
        named = self.named_content
        expected = self.computed_content if named is None else named
        try:
            content = self.find_expected(expected)
            self.complete_finalizers(content)
        except Refusal as refusal:
            self.blame(refusal)
            message = f"Failed to check and update {words.noun}: {refusal.cause}"
            self.event("Warning", f"{words.subject}FinalizerError", message)
            return retry(refusal.reason)
        bound = text(self.item, "status", words.bound_field)
        if objects.is_ready(self.item) and bound:
            if bound != expected:
                content = self.find(words.contents, bound)
            return self.check_binding(content)
        if named is None:
            content = self.find_or_make(content)
        elif content is None:
            raise self.missing_content()
        else:
            content = self.bind_to(content)
        self.copy_status(content)
        self.finish_binding(content)
        return self.end()

    def finish_binding(self, content: JsonObject) -> None:
        """Adds the finalizer that is allowed only once the object is bound."""
        self.complete_finalizers(content)

    # Class.

    def choose_class(self) -> None:
        """Finds the class; writes the default class's name if the object names none (SNC-012)."""
        words = self.words
        name = self.class_name(self.item)
        if name is not None:
            self.chosen_class = self.find(words.classes, name)
            if self.chosen_class is None:
                missing = objects.not_listed(words.class_words, name)
                message = f"{words.no_class} with error {missing}"
                raise Refusal(f"Get{words.subject}ClassFailed", message, unsets_ready=False)
            return
        if not self.needs_class:
            return
        try:
            driver = self.source_driver()
        except AttemptError as error:
            raise self.no_default(error.message) from error
        self.chosen_class = dict(self.default_class(driver))
        chosen = {"spec": {words.class_field: objects.name_of(self.chosen_class)}}
        try:
            self.write("choose-class", lambda _: chosen)
        except (AwayError, ConflictError):
            raise
        except ApiError as error:  # snapshot-controller continues without a class (SND-011)
            raise self.no_default(error) from error

    def class_name(self, item: Json) -> str | None:
        """Return the name of the class that the object or its content names."""
        return optional_text(item, "spec", self.words.class_field)

    def default_class(self, driver: str) -> Json:
        """Return the default class of a driver (SNC-011).

        Raises:
            Refusal: there is no default class, or more than one; readyToUse is left unchanged.
        """
        classes: Iterable[Json] = self.context.kube.list(self.words.classes)
        found = [
            one
            for one in classes
            if annotations_of(one).get(self.words.default_annotation) == "true"
            and text(one, "driver") == driver
        ]
        if len(found) == 1:
            return found[0]
        raise self.no_default(
            f"{len(found)} default snapshot classes were found"
            if found
            else f"cannot find default {self.words.noun} class"
        )

    def no_default(self, cause: object) -> Refusal:
        """Return the error for an object whose class could not be chosen."""
        return Refusal(
            f"SetDefault{self.words.subject}ClassFailed",
            f"Failed to set default {self.words.noun} class with error {cause}",
            unsets_ready=False,
        )

    # Content.

    def find_expected(self, name: str) -> JsonObject | None:
        """Reads the content with the expected name: from the spec, or computed by csi-fleet.

        Raises:
            Refusal: the name in the spec is empty; the status is left unchanged (SNC-020 row 4).
        """
        words = self.words
        if not name:
            key = self.key.object
            raise Refusal("", f"empty {words.contents.kind}Name for {words.noun} {key}")
        return self.find(words.contents, name)

    def refers_back(self, content: Json, *, unbound_is_fine: bool = False) -> bool:
        """True if the content refers to the object by name, namespace and UID.

        Args:
            content: the content.
            unbound_is_fine: whether an empty UID in the content counts as a match.
        """
        ref = ("spec", self.words.ref_field)
        if text(content, *ref, "name") != objects.name_of(self.item):
            return False
        if text(content, *ref, "namespace") != objects.namespace_of(self.item):
            return False
        uid = text(content, *ref, "uid")
        return uid == objects.uid_of(self.item) or (unbound_is_fine and not uid)

    def check_content(self, content: Json) -> None:
        """Checks that the content belongs to this object (SNC-051, SNC-052).

        Raises:
            Refusal: the content does not belong to this object. The reason is `words.subject`
                followed by `ContentMismatch` or `ContentMisbound`.
        """
        words, kind = self.words, self.words.contents.kind
        name, is_named = objects.name_of(content), self.named_content is not None
        key = f"{words.noun} {self.key.object}"
        if is_named and not self.is_given(content):
            raise Refusal(
                f"{words.subject}ContentMismatch",
                f"{kind} is dynamically provisioned while expecting a pre-provisioned one",
                cause=f"{key} expects a pre-provisioned {kind} {name} but gets a dynamically "
                "provisioned one",
            )
        if not is_named and not self.is_made(content):
            raise Refusal(
                f"{words.subject}ContentMismatch",
                f"{kind} {name} is pre-provisioned while expecting a dynamically provisioned one",
                cause=f"{key} expects a dynamically provisioned {kind} {name} but gets a "
                "pre-provisioned one",
            )
        if not self.refers_back(content, unbound_is_fine=is_named):
            raise Refusal(
                f"{words.subject}ContentMisbound",
                f"{kind} [{name}] is bound to a different {words.noun}",
            )

    def bind_to(self, content: JsonObject) -> JsonObject:
        """Binds a pre-provisioned snapshot content to the object if it is unbound (SND-019)."""
        words, wanted = self.words, self.class_name(self.item)

        def patch(item: JsonObject) -> JsonObject | None:
            self.check_content(item)
            # A snapshot content that needs no change is not written (SND-020).
            lacks_class = self.class_name(item) is None and wanted is not None
            if text(item, "spec", words.ref_field, "uid") and not lacks_class:
                return None
            spec: JsonObject = {words.ref_field: {"uid": objects.uid_of(self.item)}}
            if wanted is not None:
                spec[words.class_field] = wanted
            return {"spec": spec}

        try:
            return self.write_to(words.contents, content, "bind-content", patch)
        except Gone:
            raise self.missing_content() from None
        except RefusedError as error:
            message = f"{words.subject} failed to bind {words.contents.kind}, {error}"
            raise Refusal(f"{words.subject}BindFailed", message) from error

    def copy_status(self, content: JsonObject) -> None:
        """Copies the content's status to the object and records events (SNC-070, SNC-071)."""
        subject, field = self.words.subject, self.words.bound_field
        try:
            group = self.owner_of(content)
            written = self.write_status(
                "write-status",
                lambda item: snapshot_status(item, content, bound_field=field, group_name=group),
            )
        except (RefusedError, AttemptError) as error:
            message = f"{subject} status update failed, {error}"
            raise Refusal(f"{subject}StatusUpdateFailed", message, unsets_ready=False) from error
        if written is None:
            return
        key = f"{subject} {self.key.object}"
        if newly_created(*written):
            message = f"{key} was successfully created by the CSI driver."
            self.event("Normal", f"{subject}Created", message)
            self.told("created", content)
        if newly_ready(*written):
            self.event("Normal", f"{subject}Ready", f"{key} is ready to use.")
            self.told("ready", content)

    def check_binding(self, content: JsonObject | None) -> Outcome:
        """Checks that a ready object's content belongs to the object (SNC-055).

        If the content is missing or belongs to another object, reports the problem and requeues
        this object.
        """
        words = self.words
        if content is None:
            refusal = self.missing_content()
        elif not self.refers_back(content):
            message = f"{words.contents.kind} is not bound to the {self.resource.kind} correctly"
            refusal = Refusal(f"{words.subject}Misbound", message)
        else:
            return self.end()
        self.blame(refusal)
        if objects.is_ready(self.item):
            # The status could not be written, so an immediate reconcile would loop forever.
            return retry(refusal.reason)
        return wait(0, refusal.reason)

    def missing_content(self) -> Refusal:
        """Return the error for an object whose content does not exist."""
        words = self.words
        return Refusal(f"{words.subject}ContentMissing", f"{words.contents.kind} is missing")
