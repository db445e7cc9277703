"""Declares csi-attacher as data; flags and defaults of external-attacher v4.11 (A-100)."""

from __future__ import annotations

from typing import Final

from workers.controllers.attacher import names
from workers.controllers.attacher.rules import AttacherRules, is_another_kind
from workers.controllers.attacher.settings import FLAGS, GATES, read_settings
from workers.kube import paths
from workers.kube.objects import Attachment, CsiNode, Volume
from workers.queue.catalogkinds import KIND_ATTACHMENTS
from workers.spec import Kind, Permission, Spec, Watch

PERMISSIONS: Final = (
    Permission("", ("persistentvolumes",), ("get", "list", "watch", "patch"), "finalizer"),
    Permission("storage.k8s.io", ("csinodes",), ("get", "list", "watch"), "node ids"),
    Permission(
        "storage.k8s.io",
        ("volumeattachments",),
        ("get", "list", "watch", "patch"),
        "finalizer and node id",
    ),
    Permission("storage.k8s.io", ("volumeattachments/status",), ("patch",), "result and errors"),
    Permission("", ("events",), ("create", "patch"), "errors for the claim's owner"),
    Permission("", ("secrets",), ("get",), "credentials of publish calls", feature="secrets"),
)
"""A-110, with events (DA-024) and without `list` on secrets, which is never needed."""

SPEC: Final = Spec(
    name="attacher",
    program="csi-attacher",
    kinds=(
        Kind(
            names.ATTACHMENTS,
            task="attachments.sync",
            work_queue="csi-attacher-va",
            operations=("attach",),
            subject=paths.ATTACHMENTS,
            noun="va",
            group_by=("spec", "nodeName"),
        ),
        Kind(
            names.DETACHMENTS,
            task="attachments.detach",
            work_queue="csi-attacher-va-detach",
            operations=("detach",),
            subject=paths.ATTACHMENTS,
            noun="va",
            group_by=("spec", "nodeName"),
        ),
        Kind(
            names.FORCED,
            task="attachments.force",
            work_queue="csi-attacher-forced",
            subject=paths.ATTACHMENTS,
            noun="va",
            group_by=("spec", "nodeName"),
        ),
        Kind(
            names.FINALIZERS,
            task="attachments.finalizer",
            work_queue="csi-attacher-pv",
            subject=paths.VOLUMES,
        ),
        Kind(
            names.RECONCILE,
            task="attachments.reconcile",
            work_queue="csi-attacher-reconcile",
        ),
    ),
    watches=(
        Watch(paths.ATTACHMENTS, Attachment, relists=is_another_kind, catalog=KIND_ATTACHMENTS),
        Watch(paths.VOLUMES, Volume, relists=is_another_kind),
        Watch(paths.CSI_NODES, CsiNode),
    ),
    make_rules=AttacherRules,
    lease_name=names.lease_name,
    flags=FLAGS,
    read_settings=read_settings,
    gates=GATES,
    permissions=PERMISSIONS,
)
