"""A backup program's client of the SnapshotMetadata API, in Python.

It does what the iterator of external-snapshot-metadata does: it reads the driver's
SnapshotMetadataService, requests a token for its audience, and reads the stream.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from csi_client._generated import snapshotmetadata_pb2 as messages
from tests.support.kube_api import KubeApi

SERVICE = "/snapshotmetadata.SnapshotMetadata"
VERSION = "cbt.storage.k8s.io/v1beta1"
ALLOCATED = messages.GetMetadataAllocatedResponse


def add_service(api: KubeApi, driver: str, address: str, authority: Path) -> None:
    """Create the SnapshotMetadataService of a driver; its audience is `blocks-DRIVER`."""
    api.apply(
        {
            "apiVersion": VERSION,
            "kind": "SnapshotMetadataService",
            "metadata": {"name": driver},
            "spec": {
                "address": address,
                "audience": f"blocks-{driver}",
                "caCert": base64.b64encode(authority.read_bytes()).decode(),
            },
        }
    )


def token_of(api: KubeApi, namespace: str, account: str, audience: str) -> str:
    """Request a token of a service account for an audience."""
    answer = api.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": 3600},
        },
    )
    return str(answer["status"]["token"])


class BlockClient:
    """One connection of one account to a driver's server."""

    def __init__(self, api: KubeApi, driver: str, namespace: str, account: str) -> None:
        path = f"/apis/{VERSION}/snapshotmetadataservices/{driver}"
        spec = api.get(path)["spec"]
        self.namespace = namespace
        self.token = token_of(api, namespace, account, spec["audience"])
        self.channel = grpc.secure_channel(
            spec["address"],
            grpc.ssl_channel_credentials(base64.b64decode(spec["caCert"])),
            # Clients with equal options would share a connection.
            options=[("csi-fleet.test", f"{os.getpid()}-{time.monotonic_ns()}")],
        )

    def close(self) -> None:
        self.channel.close()

    def allocated(
        self, snapshot: str, *, namespace: str = "", token: str | None = None, **fields: int
    ) -> Any:
        """Return the call for the allocated blocks of a snapshot, an iterator of messages."""
        return self.channel.unary_stream(
            f"{SERVICE}/GetMetadataAllocated",
            messages.GetMetadataAllocatedRequest.SerializeToString,
            ALLOCATED.FromString,
        )(
            messages.GetMetadataAllocatedRequest(
                security_token=self.token if token is None else token,
                namespace=namespace or self.namespace,
                snapshot_name=snapshot,
                **fields,
            )
        )

    def delta(self, base: str, snapshot: str, **fields: int) -> Any:
        """Return the call for the blocks that changed since the snapshot with the handle `base`."""
        return self.channel.unary_stream(
            f"{SERVICE}/GetMetadataDelta",
            messages.GetMetadataDeltaRequest.SerializeToString,
            messages.GetMetadataDeltaResponse.FromString,
        )(
            messages.GetMetadataDeltaRequest(
                security_token=self.token,
                namespace=self.namespace,
                base_snapshot_id=base,
                target_snapshot_name=snapshot,
                **fields,
            )
        )


def blocks(answers: Any) -> Iterator[tuple[int, int]]:
    """Return the offset and the size of each block of a stream."""
    for answer in answers:
        for block in answer.block_metadata:
            yield block.byte_offset, block.size_bytes
