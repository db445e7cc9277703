"""Unexpected answers and changes of a plug-in are reported and retried, and harm nothing else."""

from __future__ import annotations

import pytest

from tests.unit.custom.test_backend import FORBIDDEN, Plugin, backoff_world, released, world_of
from workers.custom import ProvisionError, ProvisionResult
from workers.engine.outcome import Action


class OddMessageError(Exception):
    message = {"not": "text"}  # noqa: RUF012 - as an author might


class WordlessError(ProvisionError):
    def __init__(self):  # omits the fields of its base
        Exception.__init__(self, "x")


def volume(**fields):
    return ProvisionResult({"metadata": {"name": "pvc-u1"}, "spec": {}, **fields})


ODD = {
    "volume is None": ProvisionResult(None),
    "volume is a list": ProvisionResult([]),
    "metadata is None": volume(metadata=None),
    "metadata is text": volume(metadata="x"),
    "name is a number": volume(metadata={"name": 5}),
    "finalizers are text": volume(metadata={"name": "pvc-u1", "finalizers": "x"}),
    "spec is text": volume(spec="x"),
    "spec is no JSON": volume(spec={"capacity": object()}),
    "message is a number": ProvisionError(5),
    "message is a dict": OddMessageError("x"),
    "state is text": ProvisionError("x", "finished"),
    "no fields at all": WordlessError(),
}
FINAL = {"message is a number"}  # its state is final


@pytest.mark.parametrize("name", list(ODD))
def test_an_odd_answer_of_provision_is_told_and_retried(name):
    """L-101: the answer says nothing about the storage, so it counts as BACKGROUND."""
    world = world_of(Plugin(ODD[name]))
    outcome = world.claim_pass(world.add_claim())
    assert outcome.action is Action.RETRY
    (told,) = world.events.warnings()
    assert told
    assert isinstance(told, str)
    stage = "failed" if name in FINAL else "background"
    assert world.intents.intents["pvc-u1"]["stage"] == stage


@pytest.mark.parametrize("error", [OddMessageError("x"), ProvisionError(5), WordlessError()])
def test_an_odd_error_of_delete_is_told_as_text(error):
    plugin = Plugin()
    plugin.delete_answers = [error]
    world = world_of(plugin)
    released(world)
    assert world.volume_pass("pvc-u1").reason == "delete failed"
    assert world.events.warnings() == [f"{type(error).__name__}: {error}"]


def test_what_delete_changes_in_its_volume_has_no_effect():
    """workers/custom/api.py: all objects are copies, also those of the backoff store."""
    plugin, world = backoff_world()

    def delete(volume):
        plugin.deleted.append(volume["metadata"]["name"])
        volume.clear()
        raise RuntimeError("not now")

    plugin.delete = delete
    claim = world.add_claim()
    world.kube.fail["create_volume"] = [FORBIDDEN] * 3
    outcomes = [world.claim_pass(claim) for _ in range(5)]
    assert plugin.deleted == ["pvc-u1"] * 3
    assert [one.action for one in outcomes[2:]] == [Action.WAIT, Action.WAIT, Action.RETRY]
