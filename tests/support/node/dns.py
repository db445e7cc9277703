"""Answers DNS queries for the node's pods: a service's name gives the addresses of the pods
behind it.

    python -m tests.support.node.dns KUBECONFIG ADDRESS

With no kube-proxy a ClusterIP leads nowhere, so each service answers as a headless one does.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

from tests.support.kube_api import KubeApi, KubeApiError

DOMAIN = ["svc", "cluster", "local"]
A, IN, NAME_ERROR = 1, 1, 3
SECONDS = 2  # a new pod's address is found at once


def serve(kubeconfig: Path, address: str) -> None:
    """Answer queries until the process ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, KubeApi(kubeconfig) as api:
        server.bind((address, 53))
        while True:
            query, client = server.recvfrom(512)
            server.sendto(answer(query, api), client)


def answer(query: bytes, api: KubeApi) -> bytes:
    """Return the reply to one query: A records, no records for other types, or no such name."""
    labels, end = _question(query)
    kind = struct.unpack(">H", query[end : end + 2])[0]
    found = addresses(labels, api)
    records = found if kind == A and found else []
    flags = 0x8580 | (0 if found else NAME_ERROR)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
    body = query[12 : end + 4]
    for one in records:
        body += struct.pack(">HHHIH", 0xC00C, A, IN, SECONDS, 4) + socket.inet_aton(one)
    return head + body


def addresses(labels: list[str], api: KubeApi) -> list[str]:
    """Return the addresses of the pods behind `<service>.<namespace>.svc.cluster.local`, or of
    one pod by its host name."""
    if labels[-3:] != DOMAIN or not 5 <= len(labels) <= 6:
        return []
    *host, service, namespace = labels[:-3]
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    try:
        slices = api.items(path, labelSelector=f"kubernetes.io/service-name={service}")
    except KubeApiError:
        return []
    return [
        address
        for one in slices
        for endpoint in one.get("endpoints") or []
        if endpoint["conditions"].get("ready", True) and host in ([], [endpoint.get("hostname")])
        for address in endpoint["addresses"]
    ]


def _question(query: bytes) -> tuple[list[str], int]:
    """Return the name's labels and the position of their end."""
    labels, place = [], 12
    while length := query[place]:
        labels.append(query[place + 1 : place + 1 + length].decode().lower())
        place += 1 + length
    return labels, place + 1


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
