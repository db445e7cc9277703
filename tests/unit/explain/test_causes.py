"""The order of causes and their texts, from facts alone; e2e/test_explain.py has them live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.explain.claims import claim_cause
from workers.explain.facts import ClaimFacts, NodeFacts, SecretFacts, VolumeFacts
from workers.explain.serving import PROVISIONER, Served
from workers.explain.text import as_json, as_lines, folded
from workers.explain.timeline import Entry, timeline
from workers.explain.volumes import volume_cause
from workers.explain.words import duration, nearest
from workers.observability.trail import REFUSED, UNEXPECTED
from workers.queue.inspect import KeyState, Note, Pause
from workers.queue.keys import claim_key, volume_key
from workers.queue.limits import LaneLimits

NOW = 1_800_000_000.0
KEY = claim_key("d", "shop", "data", "u1")
ANNOTATIONS = {"volume.kubernetes.io/storage-provisioner": "d"}
CLAIM = {
    "metadata": {
        "namespace": "shop",
        "name": "data",
        "uid": "u1",
        "annotations": ANNOTATIONS,
        "creationTimestamp": "2027-01-15T07:59:00Z",
    },
    "spec": {"storageClassName": "fast"},
    "status": {"phase": "Pending"},
}
STATE = KeyState(KEY, NOW, limits=LaneLimits(2))
FACTS = ClaimFacts(
    "shop",
    "data",
    now=NOW,
    claim=CLAIM,
    class_name="fast",
    names_class=True,
    storage_class={"provisioner": "d"},
    driver_name="d",
    driver={"name": "d", "topology": True},
    served=Served(PROVISIONER, ("d",), ("half",)),
    state=STATE,
    watchers=1,
    workers=1,
)


def state(**changes):
    return replace(FACTS, state=replace(STATE, **changes))


def claim(**spec):
    return replace(FACTS, claim={**CLAIM, "spec": {**CLAIM["spec"], **spec}})


def lost(**spec):
    """A claim with the annotations of a bound one, whose volume does not exist."""
    facts = claim(**spec)
    bound = ANNOTATIONS | {"pv.kubernetes.io/bind-completed": "yes"}
    metadata = CLAIM["metadata"] | {"annotations": bound}
    status = {"phase": "Lost"}
    return replace(facts, claim={**facts.claim, "metadata": metadata, "status": status})


def on_node(node):
    """Node deployment: the scheduler chose a node whose worker does not provision."""
    chosen = ANNOTATIONS | {"volume.kubernetes.io/selected-node": node}
    metadata = CLAIM["metadata"] | {"annotations": chosen}
    return replace(FACTS, claim=CLAIM | {"metadata": metadata}, driver=None)


def volume(phase="Released", policy="Delete", claim="", uid="", **metadata):
    namespace, _, name = claim.partition("/")
    owner = {"namespace": namespace, "name": name, **({"uid": uid} if uid else {})}
    return {
        "metadata": {
            "name": "pv",
            "annotations": {"pv.kubernetes.io/provisioned-by": "d"},
            **metadata,
        },
        "spec": {
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": owner if name else {},
        },
        "status": {"phase": phase},
    }


def offer(**spec):
    """A volume that no claim has, and that suits the claim if `spec` does not change that."""
    found = volume("Available")
    return {**found, "spec": {"storageClassName": "fast", **spec}}


FORBIDDEN = (
    'storageclasses.storage.k8s.io "fast" is forbidden: User "dev" cannot get resource '
    '"storageclasses" in API group "storage.k8s.io" at the cluster scope'
)
ERROR = Note(NOW - 3, "error", "rpc error: code = Internal desc = boom")
REFUSAL = Note(NOW, "error", f"{REFUSED}403 Forbidden: no")
DEFECT = Note(NOW, "error", f"{UNEXPECTED} KeyError at a.py:1")
CASES = [
    pytest.param(replace(FACTS, claim=None), "not-found", "There is no claim", id="absent"),
    pytest.param(replace(FACTS, class_name="", names_class=False), "no-class", "no default class",
                 id="no class"),
    pytest.param(replace(FACTS, storage_class=None), "class-missing", "does not exist",
                 id="class missing"),
    pytest.param(claim(selector={}), "selector", "selector", id="selector"),
    pytest.param(replace(FACTS, source="A.b c", populator=""), "no-populator",
                 "from A.b c", id="nobody populates"),
    pytest.param(replace(FACTS, source="A.b c", populator="p"), "waits-for-populator",
                 "populator p", id="populated"),
    pytest.param(replace(FACTS, source="A.b c"), "waits-for-populator",
                 "a populator of that kind", id="populators cannot be read"),
    pytest.param(replace(FACTS, storage_class={"provisioner": "d",
                 "volumeBindingMode": "WaitForFirstConsumer"}), "waits-for-consumer",
                 "no pod uses", id="late binding"),
    pytest.param(replace(FACTS, pods=("web-0",), pod_node="n1", storage_class={"provisioner": "d",
                 "volumeBindingMode": "WaitForFirstConsumer"}), "waits-for-consumer",
                 "pod web-0 names node n1 itself", id="late binding, without the scheduler"),
    pytest.param(replace(FACTS, source="A.b c", populator="p", last_error=("no image", NOW)),
                 "waits-for-populator", "newest warning about the claim: no image",
                 id="the populator warns"),
    pytest.param(replace(FACTS, ready_source="VolumeSnapshot shop/s", source_driver="nas"),
                 "source-unsupported", 'belongs to driver "nas"', id="source of another driver"),
    pytest.param(replace(FACTS, driver=None, csi_driver_exists=False), "unknown-provisioner",
                 "is unknown", id="unknown provisioner"),
    pytest.param(replace(FACTS, driver=None, csi_driver_exists=True), "driver-not-registered",
                 "no worker is connected", id="not registered"),
    pytest.param(replace(FACTS, driver=None, driver_name="half"), "not-served",
                 "none of them runs the provisioner", id="half moved"),
    pytest.param(replace(FACTS, driver=None, workers=0), "no-worker", "No csi-fleet worker",
                 id="no worker"),
    pytest.param(replace(FACTS, claim={**CLAIM, "metadata": {**CLAIM["metadata"],
                 "annotations": {}}}), "not-requested", "has not requested", id="not requested"),
    pytest.param(state(pauses=(Pause("operator", "upgrade", 0.0),)), "paused", "upgrade",
                 id="paused"),
    pytest.param(state(pauses=(Pause("driver", "socket lost", NOW + 5),)), "driver-lost",
                 "socket lost", id="driver lost"),
    pytest.param(state(pauses=(Pause("lease", "old-pod", 0.0),)), "lease-elsewhere", "old-pod",
                 id="lease"),
    pytest.param(replace(FACTS, class_pause="audit"), "class-paused", "audit", id="class paused"),
    pytest.param(state(lease=("host:7:ab", NOW - 1)), "running", "Worker host:7", id="running"),
    pytest.param(state(lease=("host:7:ab", NOW - 9), trail=(Note(NOW - 9, "intent", ""),)),
                 "driver-slow", "CreateVolume for 9.0 s", id="driver slow"),
    pytest.param(state(lease=("host:7:ab", NOW - 9)), "running", "Worker host:7",
                 id="no call has begun"),
    pytest.param(state(lease=("host:7:ab", NOW), pauses=(Pause("operator", "upgrade", 0.0),)),
                 "running", "Worker host:7", id="a pause lets what runs end"),
    pytest.param(replace(FACTS, claim={**CLAIM, "metadata": {**CLAIM["metadata"],
                 "deletionTimestamp": "t", "finalizers": ["kubernetes.io/pvc-protection", "x/y"]}}),
                 "foreign-finalizer", "kubernetes.io/pvc-protection (while a pod uses it), x/y",
                 id="deleted"),
    pytest.param(lost(volumeName="pv"), "lost", "lost its volume: PersistentVolume pv does",
                 id="lost"),
    pytest.param(lost(), "lost", "but names no volume", id="lost, and never had one"),
    pytest.param(replace(claim(volumeName="pv"), volume=offer()), "binding", "is binding the",
                 id="binding"),
    pytest.param(replace(claim(volumeName="pv"), volume=offer(storageClassName="manual")),
                 "volume-mismatch", "the claim's storageClassName is fast, the volume's is manual",
                 id="another class"),
    pytest.param(replace(claim(volumeName="pv"), volume=offer(volumeMode="Block")),
                 "volume-mismatch", "the claim's volumeMode is Filesystem, the volume's is Block",
                 id="another mode"),
    pytest.param(replace(claim(volumeName="pv", accessModes=["ReadWriteMany", "ReadOnlyMany"]),
                 volume=offer(accessModes=["ReadWriteMany"])), "volume-mismatch",
                 "accessModes is ReadWriteMany, ReadOnlyMany, the volume's is ReadWriteMany",
                 id="fewer access modes"),
    pytest.param(replace(claim(volumeName="pv", resources={"requests": {"storage": "2Gi"}}),
                 volume=offer(capacity={"storage": "1Gi"})), "volume-mismatch",
                 "the claim's size is 2Gi, the volume's is 1Gi", id="too small"),
    pytest.param(replace(claim(volumeName="pv", volumeAttributesClassName="gold"),
                 volume=offer()), "volume-mismatch", "the volume's is empty",
                 id="another attributes class"),
    pytest.param(replace(FACTS, claim=None, refusal=("statefulset", "web",
                 "exceeded quota: few, requested: 1Gi")), "quota",
                 "statefulset web could not create it",
                 id="refused by a quota"),
    pytest.param(replace(FACTS, claim=None, refusal=("statefulset", "web", "no")), "not-created",
                 "statefulset web could not create it: no", id="refused by something else"),
    pytest.param(replace(FACTS, missing_source="VolumeSnapshot shop/s", missing_crd="v.g"),
                 "source-missing", "the CRD v.g is not installed", id="kind of the source missing"),
    pytest.param(replace(FACTS, storage_class=None, driver_name="", unreadable=FORBIDDEN,
                 warning="no gold"), "no-permission", "The newest warning about the claim: no gold",
                 id="class not readable"),
    pytest.param(replace(FACTS, storage_class=None, unreadable=FORBIDDEN), "no-permission",
                 "Your account lacks `get`", id="class not readable, and nothing is queued"),
    pytest.param(replace(state(fails=2, due=NOW + 60, trail=(ERROR,)), storage_class=None,
                 unreadable=FORBIDDEN), "driver-error", "boom",
                 id="class not readable, but an attempt failed"),
    pytest.param(replace(claim(volumeName="pv"), volume=volume(claim="shop/other")),
                 "volume-of-another", "belongs to claim shop/other", id="somebody else's volume"),
    pytest.param(replace(claim(volumeName="pv"), volume=volume(claim="shop/data", uid="u0")),
                 "volume-of-another", "an earlier claim of this name", id="an earlier one's"),
    pytest.param(replace(claim(volumeName="pv"), volume=volume(claim="shop/data")), "binding",
                 "is binding the claim", id="reserved by name"),
    pytest.param(on_node("n2"), "not-served", 'No worker on node "n2"', id="of other nodes"),
    pytest.param(replace(on_node("n2"), node=NodeFacts("n2", exists=False)), "node-gone", '"n2"',
                 id="of a node that is gone"),
    pytest.param(state(unsaved={"x": 1}, trail=(Note(NOW, "error", "webhook says no"),)),
                 "save-refused", "webhook says no", id="save refused"),
    pytest.param(state(blocked_by="volumes|d|pv|"), "volume-busy", "volumes|d|pv|", id="blocked"),
    pytest.param(state(position=1, waiting=4, since=NOW - 60, limits=LaneLimits(9)),
                 "no-free-worker", "waiting 1 min", id="no free worker"),
    pytest.param(state(position=3, waiting=9, in_use=2, since=NOW - 30), "limit-reached",
                 "2 of 2 tasks are running; position 3 of 9 among first attempts, waiting 30 s",
                 id="limit"),
    pytest.param(state(position=1, waiting=1, limits=LaneLimits(9, 2.5, 1)), "rate-limited",
                 "2.5 per second", id="rate"),
    pytest.param(state(position=1, waiting=1, limits=None), "no-limits", "no work starts",
                 id="no limits"),
    pytest.param(state(position=1, waiting=4, limits=LaneLimits(9)), "queued",
                 "position 1 of 4", id="queued"),
    pytest.param(replace(FACTS, node=NodeFacts("n1", exists=False)), "node-gone", '"n1"',
                 id="node gone"),
    pytest.param(replace(FACTS, node=NodeFacts("n1", exists=True, csi_drivers={})),
                 "node-lacks-driver", "CSINode", id="node lacks driver"),
    pytest.param(replace(FACTS, node=NodeFacts("n1", exists=True, csi_drivers={"d": ("z",)})),
                 "node-lacks-label", "label z", id="node lacks label"),
    pytest.param(replace(FACTS, secret=SecretFacts("shop", "key", 'secrets "key" not found')),
                 "secret-missing", "shop/key", id="secret missing"),
    pytest.param(state(fails=1, due=NOW + 1, memo='{"slow_until": 1}', trail=(ERROR,)),
                 "infeasible", "can never succeed", id="infeasible"),
    pytest.param(state(fails=1, due=NOW + 60, trail=(Note(NOW - 3, "error",
                 "rpc error: code = ResourceExhausted desc = full"),)), "storage-full", "full",
                 id="storage full"),
    pytest.param(state(fails=2, due=NOW + 60, trail=(ERROR,)), "driver-error",
                 "The driver returned an error 3.0 s ago", id="driver error"),
    pytest.param(state(fails=1, due=NOW + 60, trail=(Note(NOW, "error", "snapshot not ready"),)),
                 "attempt-failed", "snapshot not ready", id="other error"),
    pytest.param(state(fails=1, due=NOW + 60, trail=(Note(NOW, "error",
                 'error getting secret key in namespace shop: secrets "key" not found'),)),
                 "secret-missing", 'shop/key of class "fast" could not be used in the last attempt:'
                 ' secrets "key" not found.', id="secret missing, and Secrets may not be read"),
    pytest.param(state(fails=1, due=NOW + 60), "back-off", "no error has been",
                 id="back-off"),
    pytest.param(state(due=NOW + 1, trail=(Note(NOW, "waits", "API server: no answer"),)),
                 "back-off", "later: API server: no answer.", id="interrupted"),
    pytest.param(state(fails=1, due=NOW + 60, trail=(DEFECT,)),
                 "internal-error", "failed because of a bug", id="internal error"),
    pytest.param(state(fails=1, due=NOW + 60, trail=(REFUSAL,)),
                 "refused", "the API server refused: 403", id="refused"),
    pytest.param(state(fails=9, abandoned_at=NOW, trail=(ERROR,)), "driver-error", "boom",
                 id="given up"),
    pytest.param(replace(FACTS, watchers=0), "no-watcher", "No csi-fleet watcher", id="no watcher"),
    pytest.param(FACTS, "not-queued", "not queued", id="not queued"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "code", "words"), CASES)
def test_cause(facts, code, words):
    cause = claim_cause(facts)
    assert (cause.code, words in cause.text) == (code, True), cause


def test_what_must_be_there_first_comes_first():
    """A missing class is reported before a pause that would also hold the claim."""
    paused = replace(STATE, pauses=(Pause("operator", "x", 0.0),))
    assert claim_cause(replace(FACTS, state=paused, storage_class=None)).code == "class-missing"


@pytest.mark.parametrize(("phase", "is_advised"), [("Bound", False), ("Released", True)])
def test_only_a_released_volume_is_to_be_taken_from_its_claim(phase, is_advised):
    cause = claim_cause(replace(claim(volumeName="pv"), volume=volume(phase, claim="shop/other")))
    assert ("spec.claimRef" in cause.advice) == is_advised
    assert any("/spec/claimRef" in one for one in cause.templates) == is_advised


def test_every_problem_says_what_to_do():
    for case in CASES:
        cause = claim_cause(case.values[0])
        assert cause.advice or not cause.is_problem, cause.code


VOLUME_STATE = KeyState(volume_key("d", "pv"), NOW, limits=LaneLimits(2))
VOLUME = VolumeFacts(
    "pv", NOW, volume(), owner="d", driver={"name": "d"}, state=VOLUME_STATE, watchers=1, workers=1
)
CALLED = replace(VOLUME_STATE, lease=("host:7:ab", NOW - 9))
OURS = "external-provisioner.volume.kubernetes.io/finalizer"
DELETING = {"deletionTimestamp": "2027-01-15T08:00:00Z"}


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (replace(VOLUME, volume=None), "not-found"),
        (replace(VOLUME, owner=""), "not-ours"),
        (replace(VOLUME, volume=volume("Bound")), "in-use"),
        (replace(VOLUME, volume=volume("Bound", **DELETING)), "still-bound"),
        (replace(VOLUME, volume=volume(policy="Retain")), "kept"),
        (replace(VOLUME, volume=volume("Available")), "available"),
        (replace(VOLUME, volume=volume("Available", "Retain")), "available"),
        (replace(VOLUME, volume=volume("Pending")), "waiting"),
        (replace(VOLUME, driver=None), "driver-not-registered"),
        (replace(VOLUME, attachments={"a": "n1"}), "still-attached"),
        (replace(VOLUME, state=replace(VOLUME_STATE, fails=1, due=NOW, trail=(ERROR,))),
         "driver-error"),
        (replace(VOLUME, volume=volume(**DELETING, finalizers=["other/x"])), "foreign-finalizer"),
        (replace(VOLUME, volume=volume(policy="Retain", **DELETING, finalizers=["other/x"])),
         "foreign-finalizer"),
        (replace(VOLUME, driver=None, volume=volume(**DELETING, finalizers=["external-attacher/"])),
         "foreign-finalizer"),
        (replace(VOLUME, watchers=0, volume=volume(policy="Retain", **DELETING, finalizers=[OURS])),
         "no-watcher"),
        (replace(VOLUME, watchers=0, volume=volume(**DELETING,
                 finalizers=[OURS, "kubernetes.io/pv-protection"])), "no-watcher"),
        (replace(VOLUME, state=CALLED), "driver-slow"),
        (replace(VOLUME, watchers=0), "no-watcher"),
        (VOLUME, "not-queued"),
    ],
)  # fmt: skip
def test_volume_cause(facts, code):
    assert volume_cause(facts).code == code


def test_timeline_says_it_in_words_and_in_order():
    notes = [
        Note(10.0, "queued", ""),
        Note(10.1, "taken", "host:7:ab"),
        Note(10.2, "rpc", "CreateVolume DeadlineExceeded 10.001"),
        Note(10.3, "failed", "1 1000"),
        Note(10.4, "strange", "of a newer version"),
    ]
    assert [entry.text for entry in timeline(notes, None, None)] == [
        "seen and queued",
        "taken by worker host:7",
        "CreateVolume: DeadlineExceeded in 10.001 s",
        "failure 1, next attempt in 1.0 s",
    ]


def attempts(*errors):
    found = [Entry(0.0, "claim created")]
    for number, error in enumerate(errors):
        texts = ("taken by worker w", f"error: {error}", f"failure {number + 1}, next attempt")
        found += [Entry(number + 1.0, text) for text in texts]
    return found


def test_many_attempts_that_failed_alike_are_told_once():
    shown = [entry.text for entry in folded(attempts(*["disk on fire"] * 6))]
    assert shown == [
        "claim created",
        "taken by worker w",
        "error: disk on fire",
        "failure 1, next attempt",
        "... 4 more attempts failed with the same error",
        "taken by worker w",
        "error: disk on fire",
        "failure 6, next attempt",
    ]


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param(["a"] * 3, id="few"),
        pytest.param(["a", "a", "b", "a"], id="another error between"),
        pytest.param([], id="none"),
    ],
)
def test_what_tells_more_is_not_folded(errors):
    assert folded(attempts(*errors)) == attempts(*errors)


def test_a_name_nearly_right_is_suggested():
    assert nearest("op-fats", ["op-fast", "slow"]) == ' Did you mean "op-fast"?'
    assert nearest("gold", ["op-fast", "slow"]) == ""


def test_text_and_json_agree():
    cause = claim_cause(CASES[2].values[0])
    lines = as_lines("pvc shop/data", cause, [Entry(NOW, "claim created")], NOW)
    shown = as_json("pvc", "shop/data", cause, STATE, [Entry(NOW, "claim created")])
    assert shown["text"] in "\n".join(lines)
    assert shown["advice"] in "\n".join(lines)
    assert shown["queue"]["key"] == KEY.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (12, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (90000, "1 d 1 h")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
