"""Every cause has commands to run next, or needs no action by an operator."""

from __future__ import annotations

import shlex

import pytest

from tests.support import causes_page
from workers.cli.kubectl import SELECTOR
from workers.cli.tools import named_object
from workers.cli.wholes import WHOLES
from workers.config.load import parse
from workers.explain import nouns
from workers.explain.commands import COMMANDS, CREATE_KEY, NOBODY_ACTS, PODS, fill, filled, names_of
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.moves import CLUSTER, ITSELF, NOBODY, is_known, move_of
from workers.explain.text import as_lines
from workers.queue.inspect import KeyState
from workers.queue.keys import claim_key

OBJECTS = [
    *((noun.word, "shop" if noun.resource.namespaced else "") for noun in nouns.nouns().values()),
    *((word, "") for word in WHOLES),
]


# A value for every name that a template may need.
EVERY = {
    name: f"{name.replace('_', '-')}-1"
    for name in (
        *("attachment", "attributes_class", "claim", "claim_namespace", "class", "content"),
        *("crd", "creator", "creator_kind", "verb", "resource"),
        *("content_kind", "driver", "group", "namespace", "node", "pod", "quota", "secret"),
        *("secret_namespace", "snapshot", "snapshot_kind", "source_kind", "source_namespace"),
        "volume",
    )
} | {"source": "pvc shop/x"}


def every_command(word="pvc", namespace="shop"):
    names = EVERY | names_of(word, namespace, "data")
    for templates in COMMANDS.values():
        yield from fill(templates, names)


def test_every_cause_has_an_entry_and_a_move():
    assert set(COMMANDS) == set(causes_page.causes())
    assert [code for code in COMMANDS if not is_known(code)] == []


@pytest.mark.parametrize(("word", "namespace"), OBJECTS)
def test_a_person_who_must_act_has_a_command_for_every_object(word, namespace):
    """This holds even if only the object's own name is known."""
    for code, templates in COMMANDS.items():
        cause = Cause(code, "It waits.")
        found = filled(cause, word, namespace, "data", Explained(cause))
        assert bool(found.commands) == bool(templates)


def test_nobody_acts_only_where_the_move_is_nobodys():
    for code, templates in COMMANDS.items():
        is_nobodys = move_of(Cause(code, "")) in {ITSELF, CLUSTER, NOBODY}
        assert is_nobodys or templates != NOBODY_ACTS, code


def test_every_template_is_used_once_all_names_are_known():
    names = EVERY | names_of("pvc", "shop", "data")
    every = {one for templates in COMMANDS.values() for one in templates}
    assert [one for one in every if not fill((one,), names)] == []


@pytest.mark.parametrize(
    "command", sorted({one for one in every_command() if one.startswith("csi-fleet ")})
)
def test_our_own_commands_are_understood(command):
    """The command line parser and the parser of object names both accept them."""
    words = shlex.split(command.partition(" >")[0], comments=True)
    settings = parse(words[1], words[2:], {})
    if words[1] in {"explain", "retry"}:
        further = tuple(WHOLES) if words[1] == "explain" else ()
        if settings.arguments[0] not in further:
            named_object(settings.arguments, words[1], further=further)


def test_the_rest_is_kubectl():
    for command in every_command():
        words = shlex.split(command, comments=True)
        assert words[0] in {"csi-fleet", "kubectl"}
        if words[0] == "kubectl":
            assert words[1] in {
                "get",
                "describe",
                "delete",
                "patch",
                "replace",
                "edit",
                "create",
                "auth",
            }
    assert PODS.endswith(SELECTOR)


def test_names_come_from_the_object_the_key_and_the_cause():
    volume = {
        "metadata": {"name": "pvc-1"},
        "spec": {"claimRef": {"namespace": "shop", "name": "data"}, "storageClassName": "fast"},
    }
    key = claim_key("d.example.org", "shop", "data", "u1")
    found = Explained(Cause("x", ""), KeyState(key, 0.0), volume=volume)
    cause = Cause("still-bound", "It is bound.")
    assert filled(cause, "pv", "", "pvc-1", found).commands[0] == "kubectl get pvc data -n shop"
    cause = Cause("driver-error", "It failed.")
    assert "csi-fleet status --driver=d.example.org" in filled(cause, "pv", "", "p", found).commands
    cause = Cause("secret-missing", "x", names={"secret": "key", "secret_namespace": "ops"})
    assert filled(cause, "pvc", "shop", "data", found).commands == (
        "kubectl get secret key -n ops",
        CREATE_KEY.format(secret="key", secret_namespace="ops"),
        "kubectl get storageclass fast -o yaml",
        "kubectl describe pvc data -n shop",
    )


def test_a_hostile_name_stays_one_word():
    names = names_of("pvc", "shop", "x; rm -rf /") | {"driver": "$(reboot)"}
    for command in fill(("kubectl describe {object}", "csi-fleet status --driver={driver}"), names):
        assert len(shlex.split(command)) <= 6
        assert "'" in command


def test_the_text_has_one_heading():
    cause = filled(Cause("selector", "x"), "pvc", "shop", "data", Explained(Cause("x", "")))
    lines = as_lines("pvc shop/data: selector", cause, [], 0.0)
    at = lines.index("  Run next:")
    assert lines[at + 1] == "    kubectl get pvc data -n shop -o yaml > claim.yaml"
    lines = as_lines("pvc shop/data: bound", Cause("bound", "It is bound."), [], 0.0)
    assert lines[-1] == "  Run next: nothing, nobody has to act."
