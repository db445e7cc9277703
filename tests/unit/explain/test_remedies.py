"""The code of the driver's or the API server's answer decides whose action is needed."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from csi_client.errors import CODE_NAMES
from workers.explain.commands import fill, filled, names_of
from workers.explain.facts import Cause
from workers.explain.generic import Explained
from workers.explain.moves import ADMIN, ITSELF, STORAGE, USER
from workers.explain.remedies import _BY_CODE, _BY_OPERATION, _BY_STATUS, _NAMED, applied
from workers.queue.inspect import KeyState, Note
from workers.queue.keys import Key, claim_key

WEBHOOK = (
    "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o "
    "'custom-columns=KIND:.kind,NAME:.metadata.name,WEBHOOKS:.webhooks[*].name,"
    "SERVICES:.webhooks[*].clientConfig.service.name' | grep check.example.org"
)
KEY = claim_key("d.example.org", "shop", "data", "u1")
FAILED = Cause("driver-error", "The driver returned an error 1 s ago: no")


def state(*notes, key=KEY):
    trail = [Note(float(at), *note.split(" ", 1)) for at, note in enumerate(notes)]
    return KeyState(key, 100.0, due=160.0, fails=2, trail=tuple(trail))


def explained(cause, found, word="pvc", namespace="shop", name="data", **names):
    cause = applied(cause.with_names(**names), found)
    return filled(cause, word, namespace, name, Explained(cause, found))


@pytest.mark.parametrize(
    ("code", "move", "command"),
    [
        ("ResourceExhausted", STORAGE, "kubectl get csistoragecapacities -A"),
        ("InvalidArgument", ADMIN, "kubectl get storageclass fast -o yaml"),
        ("PermissionDenied", STORAGE, "kubectl describe secret key -n ops"),
        ("Unauthenticated", STORAGE, "kubectl describe secret key -n ops"),
        ("Unavailable", STORAGE, "csi-fleet status --driver=d.example.org"),
        ("DeadlineExceeded", STORAGE, "csi-fleet status --driver=d.example.org"),
        ("Internal", STORAGE, "csi-fleet status --driver=d.example.org"),
        ("AlreadyExists", USER, "kubectl get pvc data -n shop -o yaml > claim.yaml"),
        ("NotFound", STORAGE, "kubectl describe pvc data -n shop"),
        ("FailedPrecondition", USER, "kubectl describe pvc data -n shop"),
        ("OutOfRange", USER, "kubectl get pvc data -n shop -o yaml > claim.yaml"),
        ("Unimplemented", ADMIN, "csi-fleet explain driver d.example.org"),
    ],
)
def test_the_code_in_the_history_decides(code, move, command):
    """The text does not matter: in this test it names another code."""
    cause = replace(FAILED, text="rpc error: code = Aborted desc = no")
    found = state("taken w", f"rpc CreateVolume {code} 0.1", "error it failed")
    shown = explained(cause, found, **{"class": "fast", "secret": "key", "secret_namespace": "ops"})
    assert (shown.move, shown.commands[0]) == (move, command)
    assert "Attempt 3 starts at" in shown.advice


def test_a_call_that_the_driver_still_works_on_needs_nobody():
    shown = explained(FAILED, state("taken w", "rpc CreateVolume Aborted 0.1", "error pending"))
    assert (shown.move, shown.commands) == (ITSELF, ())


def test_the_text_decides_only_without_a_history():
    cause = replace(FAILED, text="it failed: rpc error: code = ResourceExhausted desc = full")
    assert applied(cause, None).move == STORAGE
    assert applied(cause, None, "InvalidArgument").move == ADMIN
    assert applied(Cause("attempt-failed", "no driver was asked"), None).move == ""
    assert applied(Cause("paused", "rpc error: code = Internal"), None).move == ""


def test_the_last_attempt_decides():
    found = state(
        *("taken w", "rpc CreateVolume ResourceExhausted 0.1", "error full"),
        *("taken w", "rpc CreateVolume InvalidArgument 0.1", "error bad"),
    )
    assert applied(FAILED, found).move == ADMIN


def test_a_report_to_the_api_server_does_not_hide_the_drivers_answer():
    found = state(
        "taken w",
        "rpc ControllerExpandVolume OutOfRange 0.1",
        "api patch persistentvolumeclaims 409 0.1",
        "error too large",
    )
    assert applied(FAILED, found).move == USER


def test_what_was_repaired_within_the_attempt_does_not_count():
    found = state(
        *("taken w", "api patch persistentvolumeclaims 409 0.1"),
        *("api patch persistentvolumeclaims 200 0.1", "error bad token ${foo}"),
    )
    assert applied(Cause("attempt-failed", "bad token ${foo}"), found).move == ""


@pytest.mark.parametrize(
    ("status", "message", "move", "command"),
    [
        pytest.param(
            422,
            "persistentvolumes \"pvc-1\" is forbidden: ValidatingAdmissionPolicy 'no-pv' with "
            "binding 'b' denied request: no",
            ADMIN,
            "kubectl get validatingadmissionpolicy no-pv -o yaml",
            id="policy",
        ),
        pytest.param(
            403,
            'admission webhook "check.example.org" denied the request: no',
            ADMIN,
            WEBHOOK,
            id="webhook",
        ),
        pytest.param(
            500,
            'Internal error occurred: failed calling webhook "check.example.org": no route',
            ADMIN,
            WEBHOOK,
            id="webhook away",
        ),
        pytest.param(
            500,
            'Internal error occurred: failed calling webhook "check.example.org": failed to call '
            'webhook: Post "https://guard.sec.svc:443/va": connection refused',
            ADMIN,
            "kubectl get pods,services -n sec",
            id="service of a webhook away",
        ),
        pytest.param(
            403,
            'volumesnapshots "x" is forbidden: exceeded quota: few, requested: 1',
            USER,
            "kubectl describe resourcequota few -n shop",
            id="quota",
        ),
        pytest.param(
            403,
            'persistentvolumes is forbidden: User "system:serviceaccount:csi-fleet:worker" cannot '
            'create resource "persistentvolumes" in API group "" at the cluster scope',
            ADMIN,
            "kubectl auth can-i create persistentvolumes "
            "--as=system:serviceaccount:csi-fleet:worker",
            id="permission",
        ),
        pytest.param(
            403,
            'events "x" is forbidden: unable to create new content in namespace shop because it is '
            "being terminated",
            USER,
            "csi-fleet explain namespace shop",
            id="namespace",
        ),
        pytest.param(403, "forbidden", ADMIN, "csi-fleet doctor", id="403"),
        pytest.param(422, "invalid", ADMIN, "kubectl describe pvc data -n shop", id="422"),
    ],
)
def test_a_refusal_of_the_api_server(status, message, move, command):
    cause = Cause("refused", f"The last attempt failed because {message}")
    found = state("taken w", f"api create persistentvolumes {status} 0.1", f"error {message}")
    shown = explained(cause, found)
    assert (shown.move, shown.commands[0]) == (move, command)
    is_named = len(message) > 10
    assert not is_named or applied(cause, None).move == move


@pytest.mark.parametrize("status", ["503", "429", "no-answer", "409"])
def test_what_passes_needs_nobody(status):
    found = state("taken w", f"api create persistentvolumes {status} 0.1", "error no")
    assert applied(Cause("attempt-failed", "no"), found).move == ITSELF


@pytest.mark.parametrize(
    ("rpc", "kind", "code", "move", "word"),
    [
        ("ControllerPublishVolume", "attachments", "ResourceExhausted", ADMIN, "move pods"),
        ("ControllerPublishVolume", "attachments", "FailedPrecondition", USER, "another node"),
        ("ControllerExpandVolume", "changes", "FailedPrecondition", USER, "no pod uses it"),
        ("CreateSnapshot", "contents", "ResourceExhausted", STORAGE, "old snapshots"),
        ("CreateVolumeGroupSnapshot", "groups", "ResourceExhausted", STORAGE, "old snapshots"),
        ("DeleteVolume", "volumes", "FailedPrecondition", USER, "attachments, snapshots"),
    ],
)
def test_a_code_means_something_else_for_another_call(rpc, kind, code, move, word):
    key = Key(kind, "d", "n/x", "u")
    shown = applied(FAILED, state("taken w", f"rpc {rpc} {code} 0.1", "error no", key=key))
    assert shown.move == move
    assert word in shown.advice


def test_every_code_of_grpc_has_a_remedy_that_can_be_typed():
    assert set(CODE_NAMES.values()) - {"OK"} == set(_BY_CODE)
    names = names_of("pvc", "shop", "data") | dict.fromkeys(
        (
            *("driver", "class", "secret", "secret_namespace", "volume", "node", "policy", "quota"),
            *("webhook", "verb", "resource", "account", "service_namespace", "source_namespace"),
            *("snapshot", "snapshot_kind", "content", "content_kind", "claim", "claim_namespace"),
        ),
        "x",
    )
    names["source"] = "snapshot shop/x"
    remedies = [*_BY_CODE.values(), *_BY_OPERATION.values(), *_BY_STATUS.values()]
    for remedy in [*remedies, *(one for _, one in _NAMED)]:
        commands = fill(remedy.templates, names)
        assert len(commands) == len(remedy.templates)
        assert all(shlex.split(one)[0] in {"kubectl", "csi-fleet"} for one in commands)
        assert (remedy.move == ITSELF) == (not commands)


@pytest.mark.parametrize(
    ("message", "move", "command"),
    [
        (
            "error generating accessibility requirements: no topology key found for node n1",
            STORAGE,
            "kubectl get csinode n1 -o yaml",
        ),
        (
            "created volume capacity 1000 less than requested capacity 1073741824",
            STORAGE,
            "csi-fleet status --driver=d.example.org",
        ),
        (
            "VolumeGroupSnapshotContent [c-1] is bound to a different group snapshot",
            USER,
            "kubectl get VolumeGroupSnapshotContent c-1 -o yaml",
        ),
        (
            "the PVC shop/late is not yet bound to a PV, will not attempt to take a snapshot",
            USER,
            "csi-fleet explain pvc shop/late",
        ),
    ],
)
def test_a_message_of_our_own_decides_too(message, move, command):
    cause = Cause("failed", f"The last attempt failed: {message}")
    shown = explained(cause, state("taken w", f"error {message}"))
    assert (shown.move, shown.commands[0]) == (move, command)


@pytest.mark.parametrize("code", ["secret-missing", "secret", "stranded", "failed"])
def test_a_secret_that_may_not_be_read_is_not_to_be_created(code):
    message = (
        'error getting secret key in namespace ops: secrets "key" is forbidden: User '
        '"system:serviceaccount:fleet:worker" cannot get resource "secrets" in API group ""'
    )
    shown = explained(Cause(code, message, "Create the secret."), state("taken w", "error no"))
    assert shown.move == ADMIN
    assert "Create" not in shown.advice
    assert shown.commands[:2] == (
        "csi-fleet secret-roles --account=fleet/worker > roles.yaml",
        "kubectl auth can-i get secret/key -n ops --as=system:serviceaccount:fleet:worker",
    )
