"""Finds out who has to act on an error from the driver or the API server, and what to do.

This depends on the gRPC code or the HTTP status. Both are stored with each call in a key's history,
so an error message is parsed only if the history has expired. The names of a webhook, a policy, a
quota or a missing permission are only in the message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from workers.controllers import catalogue
from workers.drivers.operations import RPCS
from workers.explain import queueing
from workers.explain.commands import (
    CLASS,
    CREATE_KEY,
    CSI_NODE,
    DESCRIBE,
    DRIVER,
    NOBODY_ACTS,
    ON_NODE,
    PATCH_SIZE,
    PODS,
    RECREATE,
    RETRY,
    SHOW_KEY,
)
from workers.explain.moves import ADMIN, FLEET, ITSELF, STORAGE, USER
from workers.explain.words import WHEN_REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.explain.facts import Cause
    from workers.queue.inspect import KeyState, Note

# Causes that report the error from an attempt.
ERRORS: Final = frozenset(
    {
        *("driver-error", "attempt-failed", "storage-full", "infeasible", "rescheduled", "failed"),
        *("attach-failed", "detach-failed", "change-failed", "delete-failed", "save-refused"),
        *("refused", "deleted-failing", "last-error"),
    }
)
# These causes keep their advice, because it is more specific than the remedy for the response.
_KEPT: Final = frozenset({"rescheduled", "save-refused", "deleted-failing"})
_OF_SECRETS: Final = frozenset({"secret", "secret-missing", "stranded"})
# The API server's words if csi-fleet's account may not read a Secret.
_NO_RIGHT: Final = re.compile(
    r'User "system:serviceaccount:(?P<account_namespace>[^:"]+):(?P<account>[^:"]+)" cannot get '
    r'resource "secrets"'
)
_MAY_READ: Final = (
    "kubectl auth can-i get secret/{secret} -n {secret_namespace} "
    "--as=system:serviceaccount:{account_namespace}:{account}"
)
_SECRET: Final = re.compile(
    r"error getting secret (?P<secret>\S+) in namespace (?P<secret_namespace>[^:\s]+):"
)
_NO_ANSWER: Final = "no-answer"
_LAST_WORDS: Final = re.compile(r"code = (\w+)")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call.

    Attributes:
        code: the gRPC code, such as `NotFound`; "" if the API server responded.
        status: the HTTP status, or `no-answer`; "" if the driver responded.
        operation: the driver's operation, such as `attach`; "" if unknown.
    """

    code: str = ""
    status: str = ""
    operation: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Who has to act, the advice, and the commands without names."""

    move: str
    advice: str
    templates: tuple[str, ...] = (DESCRIBE,)


_RESTART: Final = (DRIVER, PODS, RETRY)
_CREDENTIALS: Final = Remedy(
    STORAGE,
    "The storage backend does not accept the driver's credentials: correct the Secret that the "
    "class or the driver's pod names.",
    ("kubectl describe secret {secret} -n {secret_namespace}", CLASS, PODS, RETRY),
)
_OWN_FAULT: Final = Remedy(
    STORAGE, "The driver itself failed: check the driver's log and its storage backend.", _RESTART
)
_SLOW: Final = Remedy(
    STORAGE,
    "The driver did not answer in time: check the driver's log and its storage backend. The call "
    "is repeated; if the driver only needs more time, raise --timeout.",
    _RESTART,
)
_BY_CODE: Final[Mapping[str, Remedy]] = {
    "Canceled": _SLOW,
    "DeadlineExceeded": _SLOW,
    "Unknown": _OWN_FAULT,
    "Internal": _OWN_FAULT,
    "DataLoss": _OWN_FAULT,
    "InvalidArgument": Remedy(
        ADMIN,
        "The driver does not accept the request: correct the parameters of the class (a class "
        "cannot be changed, so delete it and create it again), or correct the claim.",
        (CLASS, DESCRIBE, RETRY),
    ),
    "NotFound": Remedy(
        STORAGE,
        "The storage backend does not have what the request names: look for it there.",
        (DESCRIBE, CLASS, RETRY),
    ),
    "AlreadyExists": Remedy(
        STORAGE,
        "The storage backend has something of the same name with different properties: remove or "
        "rename it there.",
        (DESCRIBE, RETRY),
    ),
    "PermissionDenied": _CREDENTIALS,
    "Unauthenticated": _CREDENTIALS,
    "ResourceExhausted": Remedy(
        STORAGE,
        "Free or add space in the storage backend, or raise its quota. Or request a smaller size.",
        ("kubectl get csistoragecapacities -A", DESCRIBE, RETRY),
    ),
    "FailedPrecondition": Remedy(
        USER,
        "The driver accepts the request only after the condition in its message is met.",
        (DESCRIBE, RETRY),
    ),
    "Aborted": Remedy(
        ITSELF, "The driver is still working on this volume; the call is repeated.", NOBODY_ACTS
    ),
    "OutOfRange": Remedy(
        USER, "Request a size that the driver supports.", (DESCRIBE, CLASS, RETRY)
    ),
    "Unimplemented": Remedy(
        ADMIN,
        "The driver does not support this operation: use a driver or a class that does.",
        ("csi-fleet explain driver {driver}", CLASS, DESCRIBE),
    ),
    "Unavailable": Remedy(
        STORAGE,
        "The driver or its storage backend is not available: check the driver's pod. The call is "
        "repeated.",
        _RESTART,
    ),
}
_ATTACHMENTS: Final = "kubectl get volumeattachments"
_WEBHOOK: Final = (
    "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o "
    "'custom-columns=KIND:.kind,NAME:.metadata.name,WEBHOOKS:.webhooks[*].name,"
    "SERVICES:.webhooks[*].clientConfig.service.name' | grep {webhook}"
)
_PV: Final = "kubectl get pv {volume} -o yaml"
_SNAPSHOT_CLASS: Final = "kubectl get volumesnapshotclasses -o yaml"
# The remedies for codes that have a special meaning for one operation.
_BY_OPERATION: Final[Mapping[tuple[str, str], Remedy]] = {
    ("create", "AlreadyExists"): Remedy(
        USER,
        "The storage backend has a volume of this name with different properties. Create the claim "
        "again, because it then gets a new volume name; or remove the volume in the storage "
        "backend if nobody needs it.",
        (*RECREATE, RETRY),
    ),
    ("create", "OutOfRange"): Remedy(
        USER,
        "Create the claim again with a size that the driver supports.",
        (*RECREATE, CLASS),
    ),
    ("create", "FailedPrecondition"): Remedy(
        USER,
        "The driver cannot copy the source yet: check the claim's source and the driver's message.",
        (DESCRIBE, "csi-fleet explain {source}", RETRY),
    ),
    ("delete", "FailedPrecondition"): Remedy(
        USER,
        "The driver deletes the volume only once nothing needs it: check for attachments, "
        "snapshots and clones of it.",
        (_ATTACHMENTS, "kubectl get volumesnapshots -A", RETRY),
    ),
    ("attach", "InvalidArgument"): Remedy(
        STORAGE,
        "The driver does not accept the volume: check its volumeHandle and volumeAttributes.",
        (_PV, DESCRIBE),
    ),
    ("attach", "NotFound"): Remedy(
        STORAGE,
        "The driver does not know this volume or node: look for the volumeHandle in the storage "
        "backend, and check that the node is registered under the right name.",
        (_PV, "kubectl get csinode {node} -o yaml"),
    ),
    ("attach", "ResourceExhausted"): Remedy(
        ADMIN,
        "The node has as many volumes as the driver allows: move pods to other nodes.",
        (
            "kubectl get pods -A --field-selector=spec.nodeName={node}",
            "kubectl get csinode {node} -o yaml",
            RETRY,
        ),
    ),
    ("attach", "FailedPrecondition"): Remedy(
        USER,
        "The volume is probably still attached to another node: it is attached here when the pod "
        "there is gone and the volume is detached.",
        (_ATTACHMENTS, _PV, RETRY),
    ),
    ("detach", "NotFound"): Remedy(
        STORAGE,
        "The driver does not know this volume or node, although a detach of something that is gone "
        "should succeed: check the driver's log and the storage backend.",
        (_PV, DRIVER, RETRY),
    ),
    ("expand", "FailedPrecondition"): Remedy(
        USER,
        "The driver expands the volume only while no pod uses it: stop the claim's pods.",
        ("kubectl get pods -n {namespace}", DESCRIBE, RETRY),
    ),
    ("expand", "OutOfRange"): Remedy(
        USER, "Request a size that the driver supports.", (DESCRIBE, PATCH_SIZE)
    ),
    ("expand", "InvalidArgument"): Remedy(
        USER, "The driver does not accept the size: request a different size.", (PATCH_SIZE,)
    ),
    ("expand", "Unimplemented"): Remedy(
        USER,
        "The driver cannot expand volumes: create a larger claim and copy the data into it.",
        ("csi-fleet explain driver {driver}", DESCRIBE),
    ),
    ("expand", "ResourceExhausted"): Remedy(
        STORAGE,
        "Free or add space in the storage backend, or raise its quota. The expansion is retried "
        "automatically.",
        ("kubectl get csistoragecapacities -A", DESCRIBE, RETRY),
    ),
    ("modify", "Unimplemented"): Remedy(
        USER,
        "The driver cannot change the class of an existing volume: set the claim's "
        "volumeAttributesClassName back to the class that the volume has.",
        (
            'kubectl patch {object} -p \'{{"spec":{{"volumeAttributesClassName":"CLASS"}}}}\'',
            "csi-fleet explain driver {driver}",
            DESCRIBE,
        ),
    ),
    ("modify", "InvalidArgument"): Remedy(
        ADMIN,
        "The driver does not accept the parameters of the VolumeAttributesClass: correct them, or "
        "choose a different class.",
        ("kubectl get volumeattributesclasses -o yaml", DESCRIBE),
    ),
    ("snapshot", "Unimplemented"): Remedy(
        USER,
        "The driver cannot take such snapshots: delete the snapshot.",
        (
            "kubectl delete {snapshot_kind} {snapshot} -n {namespace}",
            "csi-fleet explain driver {driver}",
        ),
    ),
    ("snapshot", "InvalidArgument"): Remedy(
        ADMIN,
        "The driver does not accept the request: correct the parameters of the "
        "VolumeSnapshotClass.",
        (_SNAPSHOT_CLASS, DESCRIBE, RETRY),
    ),
    ("snapshot", "ResourceExhausted"): Remedy(
        STORAGE,
        "Free or add space in the storage backend, raise its quota, or delete old snapshots.",
        ("kubectl get volumesnapshots -A", DESCRIBE, RETRY),
    ),
    ("snapshot", "FailedPrecondition"): Remedy(
        USER,
        "The driver takes the snapshot only after the condition in its message is met; some "
        "drivers need a volume that no pod uses.",
        (DESCRIBE, "kubectl get pods -n {namespace}", RETRY),
    ),
    ("delete-snapshot", "FailedPrecondition"): Remedy(
        USER,
        "The snapshot is still needed: volumes that were restored from it depend on it.",
        ("kubectl get pvc -A", DESCRIBE, RETRY),
    ),
}
_OPERATIONS: Final = {
    **{rpc.rpartition("/")[2]: operation for operation, rpc in RPCS.items()},
    "CreateVolumeGroupSnapshot": "snapshot",
    "DeleteVolumeGroupSnapshot": "delete-snapshot",
}
_RETRIED: Final = Remedy(
    ITSELF, "The API server was busy or did not answer; the request is repeated.", NOBODY_ACTS
)
_INVALID: Final = Remedy(ADMIN, "The API server does not accept the object: see the message.")
_DENIED: Final = Remedy(
    ADMIN,
    "If a permission is missing, run the next command in the worker's pod to see which one.",
    ("csi-fleet doctor",),
)
_BY_STATUS: Final[Mapping[str, Remedy]] = {
    "401": Remedy(
        FLEET, "The API server does not accept csi-fleet's token.", ("csi-fleet doctor",)
    ),
    "403": _DENIED,
    "404": Remedy(ADMIN, "The object or its namespace is gone.", (DESCRIBE,)),
    "409": Remedy(ITSELF, "The object was changed meanwhile; the request is repeated.", ()),
    "422": _INVALID,
    **dict.fromkeys((_NO_ANSWER, "408", "429", "500", "502", "503", "504"), _RETRIED),
}
# The remedies for messages that say what refused the request; the groups of each pattern match it.
_NAMED: Final[tuple[tuple[re.Pattern[str], Remedy], ...]] = (
    (
        re.compile(r"ValidatingAdmissionPolicy '(?P<policy>[^']+)'"),
        Remedy(
            ADMIN,
            "A ValidatingAdmissionPolicy refuses the object: change the policy or its binding.",
            ("kubectl get validatingadmissionpolicy {policy} -o yaml", RETRY),
        ),
    ),
    (
        _SECRET,
        Remedy(
            ADMIN,
            "Create the secret, or allow csi-fleet to read it.",
            (SHOW_KEY, CREATE_KEY, DESCRIBE, RETRY),
        ),
    ),
    (
        re.compile(
            r"accessing (?P<source_namespace>[^/\s]+)/\S+ of \w+ dataSource from \S+ isn't allowed"
        ),
        Remedy(
            ADMIN,
            "No ReferenceGrant in the source's namespace allows this claim to use the source: "
            "create one there.",
            ("kubectl get referencegrants -n {source_namespace} -o yaml", DESCRIBE, RETRY),
        ),
    ),
    (
        re.compile(r"new PVC request must be greater than or equal in size"),
        Remedy(
            USER,
            "Create the claim again; it must request at least the size of its source.",
            RECREATE,
        ),
    ),
    (
        re.compile(r"requested volume size \d+ is less than the size (?P<size>\d+) for the source"),
        Remedy(
            USER,
            "Create the claim again; it must request at least the size of the snapshot.",
            RECREATE,
        ),
    ),
    (
        re.compile(r"Source is (?:Filesystem|Block), but new PVC requested"),
        Remedy(USER, "Create the claim again with the volumeMode of its source.", RECREATE),
    ),
    (
        re.compile(r"belongs to driver (?P<source_driver>\S+), not"),
        Remedy(
            USER,
            "A driver can only copy its own volumes: create the claim again with a class of the "
            "source's driver.",
            ("kubectl get storageclass", *RECREATE),
        ),
    ),
    (
        re.compile(r"no topology key found for node (?P<node>[^\s,]+)"),
        Remedy(
            STORAGE,
            "The driver registered on that node without topology keys: check that its node pod "
            "answers NodeGetInfo with the topology, then restart that pod.",
            (CSI_NODE, ON_NODE, RETRY),
        ),
    ),
    (
        re.compile(r"created volume capacity \d+ less than requested capacity \d+"),
        Remedy(
            STORAGE,
            "The driver created a smaller volume than requested, which is a bug of the driver: "
            "report it. csi-fleet does not use that volume.",
            (DRIVER, CLASS, RETRY),
        ),
    ),
    (
        re.compile(
            r"(?P<content_kind>Volume\w*SnapshotContent) \[(?P<content>[^\]\s]+)\] is bound to a "
            "different"
        ),
        Remedy(
            USER,
            "Its content belongs to another snapshot: create the snapshot again with a content "
            "that names this snapshot.",
            ("kubectl get {content_kind} {content} -o yaml", DESCRIBE),
        ),
    ),
    (
        re.compile(r"the PVC (?P<claim_namespace>[^/\s]+)/(?P<claim>\S+) is not yet bound to a PV"),
        Remedy(
            USER,
            "The snapshot is taken automatically after that claim is bound: run the next command "
            "to see what the claim is waiting for.",
            ("csi-fleet explain pvc {claim_namespace}/{claim}", DESCRIBE),
        ),
    ),
    (
        re.compile(r"VAC \S+ referenced in PVC is for driver"),
        Remedy(
            USER,
            "Create the claim again with a VolumeAttributesClass of the claim's driver.",
            ("kubectl get volumeattributesclass", *RECREATE),
        ),
    ),
    (
        re.compile(r'admission webhook "(?P<webhook>[^"]+)" denied'),
        Remedy(
            ADMIN,
            "An admission webhook refuses the object: meet the condition in its message, or change "
            "the webhook's rules.",
            (_WEBHOOK, RETRY),
        ),
    ),
    (
        re.compile(
            r"failed calling webhook \"(?P<webhook>[^\"]+)\""
            r"(?:.*?https://(?P<service>[\w-]+)\.(?P<service_namespace>[\w-]+)\.svc)?"
        ),
        Remedy(
            ADMIN,
            "An admission webhook does not answer: start the pods of its service again. If the "
            "webhook was uninstalled, delete its configuration.",
            ("kubectl get pods,services -n {service_namespace}", _WEBHOOK, RETRY),
        ),
    ),
    (
        re.compile(r"exceeded quota: (?P<quota>[^,\s]+)"),
        Remedy(
            USER,
            "A ResourceQuota of the namespace is used up: delete objects, or raise the quota.",
            ("kubectl describe resourcequota {quota} -n {namespace}", RETRY),
        ),
    ),
    (
        re.compile(
            r'User "(?P<account>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
            r' in API group "(?P<group>[^"]*)"'
        ),
        Remedy(
            ADMIN,
            "csi-fleet's account is missing a permission: grant it.",
            ("kubectl auth can-i {verb} {resource} --as={account}", "csi-fleet doctor"),
        ),
    ),
    (
        re.compile(r"because it is being terminated"),
        Remedy(
            USER,
            "The namespace is being deleted, so nothing new can be created in it.",
            ("csi-fleet explain namespace {namespace}",),
        ),
    ),
)


def applied(cause: Cause, state: KeyState | None, code: str = "") -> Cause:
    """Return the cause with the remedy for the response that the attempt got, or unchanged.

    Args:
        cause: the cause; its text contains the error.
        state: the state of the object's key; None if there is none.
        code: the gRPC code that the object itself stores; "" if it stores none.
    """
    if found := cause.code in _OF_SECRETS | ERRORS and _NO_RIGHT.search(cause.text):
        return _without_right(cause, found.groupdict(), state)
    if cause.code not in ERRORS or cause.move:
        return cause
    answer = answer_of(state, cause.text, code)
    names = dict(cause.names)
    remedy = None
    if not answer.code:
        remedy = _named(cause.text, names)
    remedy = remedy or _remedy(answer)
    if remedy is None:
        return cause
    rest = queueing.next_try(state) if state is not None else ""
    if cause.code in _KEPT:
        rest = cause.advice.removeprefix(WHEN_REJECTED)  # the remedy is more precise
    return replace(
        cause,
        advice=f"{remedy.advice} {rest}".rstrip(),
        names=names,
        move=remedy.move,
        templates=remedy.templates,
    )


def _without_right(cause: Cause, names: Mapping[str, str], state: KeyState | None) -> Cause:
    """Return the cause with the remedy for a Secret that csi-fleet's account may not read."""
    again = queueing.next_try(state) if state is not None else ""
    found = _SECRET.search(cause.text)
    advice = (
        "csi-fleet's account may not read this Secret: grant it the permission. `csi-fleet "
        f"secret-roles` prints the Roles for all Secrets of the classes. {again}"
    )
    return replace(
        cause,
        advice=advice.rstrip(),
        names={**(found.groupdict() if found else {}), **cause.names, **names},
        move=ADMIN,
        templates=(
            "csi-fleet secret-roles --account={account_namespace}/{account} > roles.yaml",
            _MAY_READ,
            RETRY,
        ),
    )


def answer_of(state: KeyState | None, message: str, code: str = "") -> Answer:
    """Return the result of the call that made the last attempt fail.

    It comes from the history if possible, else from `code`, else from the message; an empty result
    means that the error came neither from the driver nor from the API server.
    """
    operation = _operation_of(state)
    if state is not None and (found := _in_history(state.trail)):
        return replace(found, operation=found.operation or operation)
    known = _LAST_WORDS.search(message)
    return Answer(code=code or (known.group(1) if known else ""), operation=operation)


def _in_history(trail: Iterable[Note]) -> Answer | None:
    """Return the last failed call before the last error of the last attempt; None if unknown."""
    notes = list(trail)
    ends = [at for at, note in enumerate(notes) if note.event == "error"]
    if not ends:
        return None
    starts = [at for at in range(ends[-1]) if notes[at].event == "taken"]
    attempt = notes[starts[-1] if starts else 0 : ends[-1]]
    # Only the last call of each kind counts, because an attempt repairs some errors itself. The
    # driver's error comes first, because csi-fleet reports it to the API server afterwards.
    calls = [note.detail.split() for note in attempt if note.event == "rpc"]
    driver = [call for call in calls if len(call) == 3][-1:]
    if driver and driver[0][1] != "OK":
        return Answer(code=driver[0][1], operation=_OPERATIONS.get(driver[0][0], ""))
    calls = [note.detail.split() for note in attempt if note.event == "api"]
    server = [call for call in calls if len(call) == 4 and call[1] != "events"][-1:]
    if server and (not server[0][2].isdigit() or int(server[0][2]) >= 400):
        return Answer(status=server[0][2])
    return None


def _operation_of(state: KeyState | None) -> str:
    kind = catalogue.kinds().get(state.key.kind) if state is not None else None
    operations = kind.operations if kind is not None else ()
    return operations[0].replace("group-", "") if operations else ""


def _named(message: str, names: dict[str, str]) -> Remedy | None:
    """Return the remedy for what a refusal names, and add the names to `names`; None if none."""
    for pattern, remedy in _NAMED:
        if found := pattern.search(message):
            names |= {key: name for key, name in found.groupdict().items() if name}
            if "resource" in names and names.get("group"):
                names["resource"] += f".{names.pop('group')}"
            return remedy
    return None


def _remedy(answer: Answer) -> Remedy | None:
    if answer.code:
        own = _BY_OPERATION.get((answer.operation, answer.code))
        return own or _BY_CODE.get(answer.code)
    return _BY_STATUS.get(answer.status)
