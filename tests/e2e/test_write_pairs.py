"""Allowed writes in sequence do no more to another driver's object than single ones.

A real API server runs with shipped RBAC, admission policies and tokens. Each write that an account
is allowed to do to a foreign object is done, and then every other write is tried on the result. The
sequence may change only what single writes change.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_attacks import admin, login, refusal, worker  # noqa: F401 - fixtures
from tests.support.attacked import (
    ATTACHMENTS,
    CONTENTS,
    HELD,
    SNAPSHOTS,
    VOLUMES,
    attachment_body,
    claim_body,
    content_body,
    snapshot_body,
    volume,
)
from tests.support.kube_api import KubeApiError
from tests.support.rights_table import ACCOUNTS
from tests.support.waiting import wait_until
from tests.support.write_pairs import GROUPS, OWNERS, changes, merge_patch, writes_of
from workers.constants import FINALIZER_SNAPSHOT_AS_SOURCE, FINALIZER_SNAPSHOT_IN_GROUP

SERVED, FOREIGN = "csi.example.org", "other.example.org"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
GROUP_API = f"/apis/{GROUPS}"
GROUP_SNAPSHOTS = f"{GROUP_API}/namespaces/default/volumegroupsnapshots"
GROUP_CONTENTS = f"{GROUP_API}/volumegroupsnapshotcontents"
GROUP_CRDS = Path(__file__).parents[1] / "parity" / "runner" / "crds" / "groupsnapshots.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NUMBERS = itertools.count()
# A policy or RBAC refuses, the object is invalid, the path does not exist, or a field has the wrong
# type.
REFUSED = {403, 422, 404, 405, 400}


def group(name):
    return {
        "apiVersion": GROUPS,
        "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name, "namespace": "default", "finalizers": HELD},
        "spec": {"source": {"selector": {"matchLabels": {"a": "b"}}}},
    }


def group_content(name):
    return {
        "apiVersion": GROUPS,
        "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": name, "finalizers": HELD},
        "spec": {
            "driver": FOREIGN,
            "deletionPolicy": "Delete",
            "source": {"volumeHandles": ["h"]},
            "volumeGroupSnapshotRef": {"name": "s", "namespace": "default"},
        },
    }


def held(body):
    """Add another program's finalizer, so that a deleted object can still be examined."""
    body["metadata"]["finalizers"] = ["example.org/backup"]
    return body


# The object's path, its maker, and True if docs/security.md lists single writes that change it.
VICTIMS = {
    "a volume": (VOLUMES, lambda name: held(volume(name, FOREIGN)), False),
    "an attachment": (ATTACHMENTS, lambda name: held(attachment_body(name, FOREIGN)), False),
    "a content": (CONTENTS, lambda name: held(content_body(name, FOREIGN)), False),
    "a group's content": (GROUP_CONTENTS, group_content, False),
    "a claim": (CLAIMS, lambda name: held(claim_body(name, FOREIGN)), False),
    "a claim bound by hand": (CLAIMS, lambda name: held(claim_body(name, "")), True),
    "a snapshot": (SNAPSHOTS, snapshot_body, True),
    "a snapshot that a group owns": (
        SNAPSHOTS, lambda name: snapshot_body(name, ownerReferences=OWNERS[:1]), True
    ),
    "a group snapshot": (GROUP_SNAPSHOTS, group, True),
}  # fmt: skip


@pytest.fixture(scope="module")
def attacked(admin):  # noqa: F811
    """The API server with the CRDs of group snapshots.

    They are removed if they were not there before.
    """
    definitions = [one for one in yaml.safe_load_all(GROUP_CRDS.read_text()) if one]
    known = {one["metadata"]["name"] for one in admin.items(CRDS)}
    for one in definitions:
        if one["metadata"]["name"] not in known:
            admin.apply(one)
    wait_until(lambda: refusal(admin, "GET", GROUP_SNAPSHOTS) == "", 30, "groups are served")
    wait_until(lambda: refusal(admin, "GET", GROUP_CONTENTS) == "", 30, "groups are served")
    yield admin
    for one in definitions:
        if one["metadata"]["name"] not in known:
            admin.delete(f"{CRDS}/{one['metadata']['name']}")


class Attacker:
    """One account, and a foreign object of one kind, created again for each sequence of writes."""

    def __init__(self, owner, api, path, make):
        self.admin, self.api, self.path, self.make = owner, api, path, make
        self.resource = path.rpartition("/")[2]
        self.made = []

    def victim(self):
        name = f"row-{next(NUMBERS)}"
        self.made.append(f"{self.path}/{name}")
        return self.admin.request("POST", self.path, self.make(name))

    def do(self, write, item, *, dry):
        """Return the object after the write, or None if it is refused or changes nothing."""
        path = f"{self.path}/{item['metadata']['name']}{write.place}"
        params = {"dryRun": "All"} if dry else {}
        try:
            if write.change is None:
                if item["metadata"].get("deletionTimestamp"):
                    return None
                self.api.request("DELETE", path, params=params)
                return {**item, "metadata": {**item["metadata"], "deletionTimestamp": "now"}}
            new = write.change(item)
            if new is None:
                return None
            return self.written(path, item, new, params)
        except KubeApiError as error:
            if error.status not in REFUSED:
                raise
            return None

    def written(self, path, item, new, params):
        try:
            return self.api.request(
                "PATCH", path, merge_patch(item, new), params=params,
                content_type="application/merge-patch+json",
            )  # fmt: skip
        except KubeApiError as error:
            if "cannot patch resource" not in str(error):
                raise
        return self.api.request("PUT", path, new, params=params)

    def now(self, item):
        return self.admin.get(f"{self.path}/{item['metadata']['name']}")

    def clean_up(self):
        for path in self.made:
            with suppress(KubeApiError):
                self.admin.patch(path, {"metadata": {"finalizers": None}})
            self.admin.delete(path)


@pytest.mark.parametrize("account", ["worker", "beside a driver"])
@pytest.mark.parametrize("kind", VICTIMS)
def test_no_row_of_writes_does_what_one_may_not(attacked, worker, login, account, kind):  # noqa: F811
    path, make, has_allowed = VICTIMS[kind]
    attacker = Attacker(attacked, login(ACCOUNTS[account]), path, make)
    try:
        fresh = attacker.victim()
        writes = writes_of(attacker.resource, fresh)
        alone = {one.name: attacker.do(one, fresh, dry=True) for one in writes}
        allowed = [one for one in writes if alone[one.name] is not None]
        single = set().union(*(changes(fresh, alone[one.name]) for one in allowed), set())
        assert has_allowed or not allowed, [one.name for one in allowed]
        assert "DELETE" not in [one.name for one in allowed]
        # Some writes do the same through two paths.
        firsts = {frozenset(changes(fresh, alone[one.name])): one for one in allowed[::-1]}
        for first in firsts.values():
            victim = attacker.victim()
            assert attacker.do(first, victim, dry=False) is not None, first.name
            middle = attacker.now(victim)
            for second in writes:
                if attacker.do(second, middle, dry=True) is None:
                    continue
                pair = attacker.victim()
                attacker.do(first, pair, dry=False)
                attacker.do(second, attacker.now(pair), dry=False)
                new = changes(pair, attacker.now(pair)) - single
                assert not new, f"{first.name}, then {second.name}: {new}"
            for other in allowed:  # finally one after another, as far as they succeed
                attacker.do(other, attacker.now(victim), dry=False)
            after = attacker.now(victim)
            assert not changes(victim, after) - single
            for last in writes:
                end = attacker.do(last, after, dry=True)
                assert end is None or not changes(victim, end) - single, f"all, then {last.name}"
    finally:
        attacker.clean_up()


# Sequences of writes that were found by reasoning.


def test_a_snapshot_of_nobodys_group_is_not_made_a_member_of_one(attacked, worker):  # noqa: F811
    """Changing the owner, the finalizer and the status, alone and one after another, is refused."""
    attacker = Attacker(attacked, worker, SNAPSHOTS, snapshot_body)
    item = attacker.victim()
    path = f"{SNAPSHOTS}/{item['metadata']['name']}"
    protected = {"finalizers": [*HELD, FINALIZER_SNAPSHOT_IN_GROUP]}
    steps = [
        ("PATCH", path, {"metadata": protected}, "these finalizers"),
        ("PATCH", path, {"metadata": {"ownerReferences": OWNERS[:1]}}, "owners of a snapshot"),
        (
            "PATCH",
            f"{path}/status",
            {"status": {"volumeGroupSnapshotName": "g"}},
            "the group of a snapshot",
        ),
        ("PATCH", path, {"metadata": {"finalizers": HELD[:1]}}, "these finalizers"),
        ("DELETE", path, None, "members of groups"),
    ]
    try:
        for verb, place, body, words in steps:
            assert words in refusal(worker, verb, place, body, dry=False)
        assert not changes(item, attacker.now(item))
    finally:
        attacker.clean_up()


def test_what_a_member_of_a_group_goes_through_is_allowed(attacked, worker):  # noqa: F811
    """The steps are those of members.py, groupnames.own, decide.py and groupdeletion.py."""
    name = f"member-{next(NUMBERS)}"
    path = f"{SNAPSHOTS}/{name}"
    body = snapshot_body(name, finalizers=[FINALIZER_SNAPSHOT_IN_GROUP], ownerReferences=OWNERS[:1])
    bound = {"boundVolumeSnapshotContentName": "c", "volumeGroupSnapshotName": "g"}
    second = {**OWNERS[0], "uid": "another"}
    finalizers = [FINALIZER_SNAPSHOT_IN_GROUP, FINALIZER_SNAPSHOT_AS_SOURCE]
    steps = [
        ("POST", SNAPSHOTS, body),
        ("PATCH", f"{path}/status", {"status": bound}),
        ("PATCH", path, {"metadata": {"ownerReferences": [OWNERS[0], second]}}),
        ("PATCH", path, {"metadata": {"finalizers": finalizers}}),
        ("DELETE", path, None),
        ("PATCH", path, {"metadata": {"finalizers": []}}),
    ]
    for verb, place, change in steps:
        assert refusal(worker, verb, place, change, dry=False) == "", (verb, change)
    assert "not found" in refusal(attacked, "GET", path)


@pytest.mark.parametrize(
    "change",
    [
        {"finalizers": [FINALIZER_SNAPSHOT_AS_SOURCE]},
        {"ownerReferences": OWNERS[1:2]},
        {"ownerReferences": []},
    ],
    ids=["without the finalizer of members", "of something called like a group", "of nobody"],
)
def test_a_snapshot_that_is_no_member_is_not_made(attacked, worker, change):  # noqa: F811
    member = {"finalizers": [FINALIZER_SNAPSHOT_IN_GROUP], "ownerReferences": OWNERS[:1]}
    body = snapshot_body("forged", **member)
    assert refusal(worker, "POST", SNAPSHOTS, body) == ""
    forged = snapshot_body("forged", **{**member, **change})
    assert "members of groups" in refusal(worker, "POST", SNAPSHOTS, forged)
    body["spec"] = {"source": {"volumeSnapshotContentName": "a-content-of-somebody"}}
    assert "there already" in refusal(worker, "POST", SNAPSHOTS, body)


OTHERS_PLUGIN = {"pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs"}
OTHERS_MARK = {"pv.kubernetes.io/migrated-to": FOREIGN}


@pytest.mark.parametrize("annotations", [OTHERS_PLUGIN, OTHERS_MARK])
def test_a_volume_of_its_own_is_not_given_to_another_driver(worker, annotations):  # noqa: F811
    """Otherwise the other driver would delete any handle that the attacker chooses."""
    body = volume("given", SERVED)
    body["metadata"]["annotations"] |= annotations
    assert "its own driver" in refusal(worker, "POST", VOLUMES, body)
