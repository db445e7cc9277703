"""The frame of one pass over a snapshot or a group snapshot: class, finalizers, content, status.

What both do alike stands here (SNC-020, SNG-002): `Words` says what their objects, events and texts
are called, the methods without a body what differs. Everything is read live; what a step writes is
seen by the next one, so one pass takes a new object from nothing to bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from workers.controllers.snapshot_controller.decide import Refusal
from workers.controllers.snapshot_controller.work import Busy, Gone, ObjectPass
from workers.engine.outcome import Outcome, done, wait
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
    """How one of the two kinds is called.

    Attributes:
        subject: first word of its reasons and messages, `Snapshot`.
        noun: in running text, `snapshot`.
        contents, classes: the resources of its contents and classes.
        class_words: the class in the text of a missing one.
        bound_field: of its status; the content's name.
        class_field: of its spec and its content's; the class' name.
        ref_field: of its content's spec; the way back.
        default_annotation: of a default class.
        being_deleted: annotation of a content whose object is deleted.
        no_class: how the text about a missing class begins.
        one_source: what its sources must be.
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
    """A live object that is bound to a content; `words` are its kind's."""

    words: ClassVar[Words]
    chosen_class: JsonObject | None = None

    # What differs.

    @property
    @abstractmethod
    def named_content(self) -> str | None:
        """The content that a pre-provisioned object names."""

    @property
    @abstractmethod
    def has_one_source(self) -> bool:
        """Row 3 of SNC-020."""

    @property
    @abstractmethod
    def needs_class(self) -> bool:
        """Whether an object without class gets the default one (SNC-011)."""

    @property
    @abstractmethod
    def computed_content(self) -> str:
        """The name of the content that is made for a dynamic object."""

    @abstractmethod
    def source_driver(self) -> str:
        """The driver of what is snapshotted.

        Raises:
            AttemptError: it cannot be known.
        """

    @abstractmethod
    def is_given(self, content: Json) -> bool:
        """Whether the content is fit for an object that names it."""

    @abstractmethod
    def is_made(self, content: Json) -> bool:
        """Whether the content is fit for a dynamic object."""

    @abstractmethod
    def complete_finalizers(self, content: JsonObject | None) -> None:
        """SNC-030; with the checks of the content that belong to it.

        Raises:
            Refusal: the content is not fit for this object.
        """

    @abstractmethod
    def find_or_make(self, content: JsonObject | None) -> JsonObject:
        """The content of an object that names none (section 2.4)."""

    @abstractmethod
    def delete(self) -> Outcome:
        """One pass over an object with a deletionTimestamp."""

    def begin(self) -> None:
        """Before anything else but the class."""

    def end(self) -> Outcome:
        """After the status was copied."""
        return done("ready" if objects.is_ready(self.item) else "waits for its content")

    def owner_of(self, content: Json) -> str:
        """The group snapshot to be named in the status."""
        del content
        return ""

    def told(self, operation: str, content: Json) -> None:
        """An operation came to its good end."""

    # One pass.

    def run(self) -> Outcome:
        """SNC-002 and SNC-020.

        Raises:
            Gone: the object, or what it is bound to, went meanwhile.
        """
        try:
            return self._judged()
        except Busy as busy:
            return busy.outcome()

    def _judged(self) -> Outcome:
        try:
            return self.delete() if is_deleting(self.item) else self._sync()
        except Refusal as refusal:
            self.blame(refusal)
            return self.failed(refusal.reason)

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
            return self.failed(refusal.reason)
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
        """The finalizer that waits for the binding."""
        self.complete_finalizers(content)

    # Class.

    def choose_class(self) -> None:
        """Find the class, or write the default one's name into the object; once (SNC-012)."""
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
        except ApiError as error:  # the reference goes on without a class (SND-011)
            raise self.no_default(error) from error

    def class_name(self, item: Json) -> str | None:
        """The class that the object or its content names."""
        return optional_text(item, "spec", self.words.class_field)

    def default_class(self, driver: str) -> Json:
        """The default class of a driver (SNC-011).

        Raises:
            Refusal: there is none, or more than one; readyToUse stays as it is.
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
        """The error of an object whose class could not be chosen."""
        return Refusal(
            f"SetDefault{self.words.subject}ClassFailed",
            f"Failed to set default {self.words.noun} class with error {cause}",
            unsets_ready=False,
        )

    # Content.

    def find_expected(self, name: str) -> JsonObject | None:
        """The named or computed content.

        Raises:
            Refusal: the object names the empty one; its status is left alone (SNC-020 row 4).
        """
        words = self.words
        if not name:
            key = self.key.object
            raise Refusal("", f"empty {words.contents.kind}Name for {words.noun} {key}")
        return self.find(words.contents, name)

    def refers_back(self, content: Json, *, unbound_is_fine: bool = False) -> bool:
        """Whether the content points back by name, namespace and UID.

        Args:
            content: the content.
            unbound_is_fine: an empty UID in the content counts as equal.
        """
        ref = ("spec", self.words.ref_field)
        if text(content, *ref, "name") != objects.name_of(self.item):
            return False
        if text(content, *ref, "namespace") != objects.namespace_of(self.item):
            return False
        uid = text(content, *ref, "uid")
        return uid == objects.uid_of(self.item) or (unbound_is_fine and not uid)

    def check_content(self, content: Json) -> None:
        """Is this content fit for this object? SNC-051, SNC-052.

        Raises:
            Refusal: `ContentMismatch` or `ContentMisbound`, with the kind's first word.
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
        """Make a pre-provisioned content ours; only while nobody else has it (SND-019)."""
        words, wanted = self.words, self.class_name(self.item)

        def patch(item: JsonObject) -> JsonObject | None:
            self.check_content(item)
            # One that could not be changed is left alone (SND-020).
            lacks_class = self.class_name(item) is None and wanted is not None
            if text(item, "spec", words.ref_field, "uid") and not lacks_class:
                return None
            spec: JsonObject = {words.ref_field: {"uid": objects.uid_of(self.item)}}
            if wanted is not None:
                spec[words.class_field] = wanted
            return {"spec": spec}

        try:
            return self.write_to(words.contents, content, "bind-content", patch)[0]
        except Gone:
            raise self.missing_content() from None
        except RefusedError as error:
            message = f"{words.subject} failed to bind {words.contents.kind}, {error}"
            raise Refusal(f"{words.subject}BindFailed", message) from error

    def copy_status(self, content: JsonObject) -> None:
        """Bring the content's status over, and tell of what is new (SNC-070, SNC-071)."""
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
        """SNC-055: a ready object whose content is not its own starts anew."""
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
            # Its status was refused: at once would be for ever.
            return self.failed(refusal.reason)
        return wait(0, refusal.reason)

    def missing_content(self) -> Refusal:
        """The named or bound content does not exist."""
        words = self.words
        return Refusal(f"{words.subject}ContentMissing", f"{words.contents.kind} is missing")
