"""The watch machine with controllers that the test defines."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.support.kube_objects import make_claim, make_volume
from watcher.machine import Machine
from workers.kube import paths
from workers.kube.objects import Attachment, Claim, Meta, Node, Volume
from workers.kube.watch import ReflectorHealth
from workers.queue.catalogkinds import KIND_ATTACHMENTS
from workers.queue.keys import Key
from workers.spec import Forget, Kind, Scope, Spec, Watch

DRIVER = {"foo": {"name": "foo", "queue_name": "foo", "controllers": ["first", "second"]}}


class Rules:
    """Rules that record each call and return what the test chooses."""

    def __init__(self):
        self.told = []
        self.says = []
        self.breaks = False

    def _note(self, *what):
        self.told.append(what)
        if self.breaks:
            raise ZeroDivisionError
        return self.says

    def set_drivers(self, drivers):
        return self._note("drivers", [record["queue_name"] for record in drivers])

    def seen(self, resource, item, *, is_listed):
        return self._note("listed" if is_listed else "seen", resource.plural, item.metadata.name)

    def gone(self, resource, item):
        return self._note("gone", resource.plural, item.metadata.name)

    def begin_list(self, resource):
        self._note("begin", resource.plural)

    def end_list(self, resource):
        return self._note("end", resource.plural)

    def all_keys(self):
        return self.says


@dataclass
class Follower:
    """A reflector that the test drives."""

    stream: object
    sink: object
    health: ReflectorHealth = field(default_factory=ReflectorHealth)
    relists: int = 0

    def relist(self):
        self.relists += 1

    def list(self, *items):
        self.sink.begin_list()
        for item in items:
            self.sink.listed(item)
        self.sink.end_list("9")
        self.health.lists += 1


class FakeOutbox:
    def __init__(self):
        self.sent = []
        self.catalog = []
        self.held = []

    def add(self, keys, *, version=""):
        self.sent += [("add", key.text, version) for key in keys]

    def forget(self, keys):
        self.sent += [("forget", key.text) for key in keys]

    def put(self, kind, name, version, value):
        self.catalog.append((kind, name, value))

    def hold(self, key_kinds, kind):
        self.held.append((sorted(key_kinds), kind))

    def replace(self, kind, listed):
        self.catalog.append((kind, sorted(listed.items)))


class Scene:
    """Two controllers, `first` and `second`, with the watches that the test gives them."""

    def __init__(self, first=(), second=(), chosen=("first",), **more):
        kinds = (Kind("work", "t", "w", subject=paths.CLAIMS), Kind("other", "t", "w"))
        specs = [
            Spec("first", "", kinds, tuple(first), Rules, **more),
            Spec("second", "", kinds, tuple(second), Rules),
        ]
        self.outbox = FakeOutbox()
        self.machine = Machine(
            specs,
            self.outbox,
            chosen=chosen,
            epoch=lambda: "e",
            follow=Follower,
        )

    def __getitem__(self, name):
        return self.machine.reflectors[name]

    def told(self, name):
        told = self.machine.rules(name).told
        found, told[:] = list(told), []
        return [what for what in found if what[0] != "drivers"]

    @property
    def followed(self):
        return set(self.machine.reflectors)


CLAIMS = Watch(paths.CLAIMS, Claim)
VOLUMES = Watch(paths.VOLUMES, Volume)


def test_one_reflector_serves_every_controller():
    scene = Scene([CLAIMS, VOLUMES], [CLAIMS], chosen=["first", "second"])
    scene.machine.begin()
    assert scene.followed == {"persistentvolumeclaims", "persistentvolumes"}
    scene["persistentvolumeclaims"].list(make_claim("a"))
    scene["persistentvolumeclaims"].sink.changed(make_claim("b"))
    scene["persistentvolumeclaims"].sink.deleted(make_claim("b"))
    expected = [
        (what, "persistentvolumeclaims", *name)
        for what, *name in (("begin",), ("listed", "a"), ("end",), ("seen", "b"), ("gone", "b"))
    ]
    assert scene.told("first") == scene.told("second") == expected


def test_nothing_is_followed_before_redis_was_seen():
    """Before that, keys and cache entries would only pile up."""
    scene = Scene([CLAIMS])
    scene.machine.set_records(DRIVER)
    assert scene.followed == set()
    scene.machine.begin()
    assert scene.followed == {"persistentvolumeclaims"}


def test_a_controller_runs_when_it_is_chosen_or_a_driver_has_it():
    scene = Scene([CLAIMS], [VOLUMES])
    scene.machine.begin()
    assert scene.followed == {"persistentvolumeclaims"}
    scene.machine.set_records(DRIVER)
    assert scene.followed == {"persistentvolumeclaims", "persistentvolumes"}


def test_a_watch_starts_once_it_is_needed():
    scene = Scene([Watch(paths.VOLUMES, Volume, is_needed=bool)])
    scene.machine.begin()
    assert scene.followed == set()
    scene.machine.set_records(DRIVER)
    assert scene.followed == {"persistentvolumes"}


def test_rules_get_the_records_of_their_own_drivers_only():
    scene = Scene()
    other = {"name": "bar", "queue_name": "bar", "controllers": ["second"]}
    scene.machine.set_records({**DRIVER, "bar": other})
    assert scene.machine.rules("first").told == [("drivers", ["foo"])]
    assert scene.machine.rules("second").told == [("drivers", ["foo", "bar"])]


def test_a_controller_that_comes_later_hears_a_whole_list():
    """A partial list would look as if the other objects had been deleted."""
    scene = Scene([CLAIMS], [CLAIMS])
    scene.machine.begin()
    claims = scene["persistentvolumeclaims"]
    claims.list()
    scene.machine.set_records(DRIVER)
    assert claims.relists > 0
    claims.sink.changed(make_claim("a"))
    assert scene.told("second") == []
    claims.list(make_claim("a"))
    assert [what[0] for what in scene.told("second")] == ["begin", "listed", "end"]


def test_new_drivers_lead_to_a_new_list_unless_their_objects_are_remembered():
    remembers = Watch(paths.VOLUMES, Volume, relists=lambda before, now: False)
    scene = Scene([CLAIMS, remembers])
    scene.machine.begin()
    scene.machine.set_records(DRIVER)
    assert (scene["persistentvolumeclaims"].relists, scene["persistentvolumes"].relists) == (1, 0)
    scene.machine.set_records({**DRIVER, "foo@n": {**DRIVER["foo"], "queue_name": "foo@n"}})
    assert scene["persistentvolumeclaims"].relists == 1


def test_a_defect_in_one_controller_keeps_nothing_from_the_others():
    scene = Scene([CLAIMS], [CLAIMS], chosen=["first", "second"])
    scene.machine.begin()
    claims = scene["persistentvolumeclaims"]
    claims.list()
    scene.machine.rules("first").breaks = True
    scene.told("second")
    with pytest.raises(ZeroDivisionError):
        claims.sink.changed(make_claim("a"))
    claims.list(make_claim("a"))
    assert [what[0] for what in scene.told("second")] == ["seen", "begin", "listed", "end"]


@pytest.mark.parametrize(
    ("told", "sent"),
    [
        pytest.param(
            Key("work", "d", "default/claim1", "u1"),
            ("add", "work|d|default/claim1|u1", "7"),
            id="of this object: its version goes with it",
        ),
        pytest.param(
            Key("work", "d", "default/claim1", "another"),
            ("add", "work|d|default/claim1|another", ""),
            id="of an earlier object of this name",
        ),
        pytest.param(
            Key("work", "d", "default/source"), ("add", "work|d|default/source|", ""), id="another"
        ),
        pytest.param(
            Key("other", "d", "default/claim1"), ("add", "other|d|default/claim1|", ""), id="kind"
        ),
        pytest.param(
            Forget(Key("work", "d", "default/claim1")), ("forget", "work|d|default/claim1|"), id="x"
        ),
    ],
)
def test_keys_carry_the_version_of_their_own_object(told, sent):
    """COR-15: a reconcile that has read this version makes a second copy of the event redundant."""
    scene = Scene([CLAIMS])
    scene.machine.begin()
    scene["persistentvolumeclaims"].list()
    scene.machine.rules("first").says = [told]
    scene.outbox.sent.clear()
    scene["persistentvolumeclaims"].sink.changed(make_claim(version="7"))
    assert scene.outbox.sent == [sent]


def test_what_a_list_contains_is_added_whatever_was_added_before():
    """After a gap, a restart or a wipe, the outcome of the earlier add is unknown."""
    scene = Scene([CLAIMS])
    scene.machine.begin()
    scene.machine.rules("first").says = [Key("work", "d", "default/claim1", "u1")]
    scene["persistentvolumeclaims"].list(make_claim(version="7"))
    assert {version for *_, version in scene.outbox.sent} == {""}


def test_a_list_says_nothing_of_versions_it_does_not_name():
    scene = Scene([CLAIMS])
    scene.machine.begin()
    scene.machine.rules("first").says = [Key("work", "d", "default/gone", "u")]
    scene["persistentvolumeclaims"].list()
    assert scene.outbox.sent == [("add", "work|d|default/gone|u", "")]


def test_the_catalog_shares_the_reflector():
    catalogued = Watch(paths.ATTACHMENTS, Attachment, is_needed=bool, catalog=KIND_ATTACHMENTS)
    scene = Scene([catalogued], [Watch(paths.ATTACHMENTS, Attachment)], chosen=["second"])
    scene.machine.begin()
    attachments = scene["volumeattachments"]
    item = Attachment(metadata=Meta(name="va", resource_version="3"))
    item.spec.source.persistent_volume_name, item.spec.node_name = "pv", "n"
    attachments.list(item)
    assert scene.outbox.catalog == []
    scene.machine.set_records(DRIVER)
    assert attachments.relists > 0
    attachments.list(item)
    assert scene.outbox.catalog == [(KIND_ATTACHMENTS, ["pv"])]
    assert scene.machine.catalog_kinds == {KIND_ATTACHMENTS: "volumeattachments"}


def test_metadata_is_enough_only_if_it_is_for_all():
    """Another controller that joins later may need whole objects."""
    thin = Watch(paths.NODES, Node, metadata_only=True)
    assert followed_with(thin) is True
    assert followed_with(thin, [Watch(paths.NODES, Node)]) is False


def followed_with(watch, others=()):
    scene = Scene([watch], others)
    scene.machine.begin()
    return scene["nodes"].stream.metadata_only


def scopes(records):
    return [Scope("ns1", "a=b"), Scope("ns2")][: len(records)]


def test_parts_of_a_resource_are_followed_apart():
    """CAP-030: permission for a single namespace is enough."""
    scene = Scene([Watch(paths.CLAIMS, Claim, scopes=scopes)])
    scene.machine.begin()
    scene.machine.set_records({**DRIVER, "x": {**DRIVER["foo"], "queue_name": "x"}})
    names = {"persistentvolumeclaims ns1 a=b", "persistentvolumeclaims ns2"}
    assert scene.followed == names
    one, two = (scene[name] for name in sorted(names))
    one.list(make_claim("a", uid="1"), make_claim("b", uid="2"))
    two.list(make_claim("c", uid="3"))
    scene.told("first")
    one.list(make_claim("a", uid="1"))
    assert scene.told("first") == [
        ("listed", "persistentvolumeclaims", "a"),
        ("gone", "persistentvolumeclaims", "b"),
    ]


def test_an_object_that_left_its_part_is_told_as_it_was_known():
    """C-098: rules find the owner by labels, which may be the very labels that were removed."""
    scene = Scene([Watch(paths.CLAIMS, Claim, scopes=scopes)])
    scene.machine.begin()
    scene.machine.set_records(DRIVER)
    part = scene["persistentvolumeclaims ns1 a=b"]
    known, bare = make_claim("a", uid="1", labels={"a": "b"}), make_claim("a", uid="1")
    part.list(known)
    scene.told("first")
    rules, labels = scene.machine.rules("first"), []
    rules.gone = lambda _resource, item: labels.append(item.metadata.labels) or []
    part.sink.deleted(bare)
    assert labels == [{"a": "b"}]
    part.list()
    assert labels == [{"a": "b"}], "told once"


def test_every_key_of_every_controller_is_there_for_a_resync():
    scene = Scene()
    keys = [Key("work", "d", "a"), Key("work", "d", "b")]
    for name, key in zip(("first", "second"), keys, strict=True):
        scene.machine.rules(name).says = [key]
    assert scene.machine.all_keys() == keys


def test_a_list_is_asked_for_once_until_it_was_made():
    """COR-4: checks for missing cache entries do not restart a long list."""
    scene = Scene([VOLUMES])
    scene.machine.begin()
    assert scene.machine.is_asked("persistentvolumes")
    scene["persistentvolumes"].list(make_volume())
    assert not scene.machine.is_asked("persistentvolumes")
    scene.machine.relist(["persistentvolumes"])
    assert scene.machine.is_asked("persistentvolumes")
    scene["persistentvolumes"].list(make_volume())
    assert not scene.machine.is_asked("persistentvolumes")
