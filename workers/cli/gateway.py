"""A driver's gateway: haproxy lets central workers reach the driver's Unix socket over TCP.

This module is pure: it returns what the container runs and mounts. haproxy is part of csi-fleet's
image. It accepts only TLS 1.3, and only clients with a certificate from the drivers' authority. A
shell script checks the certificates every 10 s. When they change, it starts a second haproxy, which
accepts the new connections; the first haproxy ends with its last connection, at most 10 minutes
later. If haproxy rejects a certificate, the first haproxy keeps running.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.kube.objects import JsonObject

NAME: Final = "csi-fleet-gateway"
LABEL: Final = "csi-fleet.io/gateway"
VOLUME: Final = "csi-fleet-gateway-tls"
FOLDER: Final = "/run/csi-fleet-gateway"
# Measured with 4 workers: 3.6 MiB of memory and 11 MiB of files; twice as much while certificates
# change.
RESOURCES: Final = {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
_MOST_CHARACTERS: Final = 63
_PREFIX: Final = "csi-fleet-"
_PLAIN: Final = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*")

CONFIG: Final = """\
global
  nbthread 1
  maxconn 512
  tune.ssl.cachesize 0
  ssl-load-extra-del-ext
  ssl-default-bind-options ssl-min-ver TLSv1.3
  hard-stop-after 10m
defaults
  mode tcp
  timeout connect 5s
  timeout client 24h
  timeout server 24h
  option clitcpka
  clitcpka-idle 30s
  clitcpka-intvl 10s
  clitcpka-cnt 3
frontend csi
  bind "${POD_IP}:PORT" ssl crt FOLDER/tls.crt ca-file FOLDER/ca.crt verify required alpn h2
  default_backend driver
backend driver
  server driver unix@SOCKET
"""

SCRIPT: Final = """\
trap 'kill $old $pid $new 2>/dev/null; exit 0' TERM INT
old= pid= new= seen=
while :; do
  now="$(cat FOLDER/ca.crt FOLDER/tls.crt FOLDER/tls.key | cksum)"
  if [ "$now" != "$seen" ] && haproxy -c -f /dev/stdin <<EOF
$GATEWAY_CONFIG
EOF
  then
    haproxy -db -f /dev/stdin ${pid:+-sf $pid} <<EOF &
$GATEWAY_CONFIG
EOF
    new=$!
    sleep 1
    if kill -0 $new 2>/dev/null; then old=$pid pid=$new seen=$now; fi
  fi
  sleep 10 & wait $!
  [ -n "$pid" ] && kill -0 $pid 2>/dev/null || exit 1
done
"""


def name_of(driver: str) -> str:
    """Return the name of the driver's Service, Secret and policy.

    It is a DNS label and unique for each driver.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", driver.lower()).strip("-")
    if _PLAIN.fullmatch(driver) and len(_PREFIX + plain) <= _MOST_CHARACTERS:
        return _PREFIX + plain
    mark = hashlib.sha256(driver.encode()).hexdigest()[:8]
    return f"{_PREFIX}{plain[: _MOST_CHARACTERS - len(_PREFIX) - 9].strip('-')}-{mark}"


def container(
    image: str, pull_policy: str, socket: str, port: int, mounts: list[JsonObject]
) -> JsonObject:
    """Return the container, without its user.

    Args:
        image: the image of csi-fleet.
        pull_policy: the pull policy of the image; "" for the cluster's default.
        socket: the path of the driver's socket in the container.
        port: the port of the gateway.
        mounts: the volume mounts that contain the socket.
    """
    config = CONFIG.replace("FOLDER", FOLDER).replace("PORT", str(port)).replace("SOCKET", socket)
    return {
        "name": NAME,
        "image": image,
        **({"imagePullPolicy": pull_policy} if pull_policy else {}),
        "command": ["/bin/sh", "-c", SCRIPT.replace("FOLDER", FOLDER)],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "GATEWAY_CONFIG", "value": config},
        ],
        "ports": [{"name": NAME.removeprefix("csi-fleet-"), "containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 5},
        "resources": {name: dict(value) for name, value in RESOURCES.items()},
        "volumeMounts": [*mounts, {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}],
    }
