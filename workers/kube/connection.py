"""Finds the API server and its credentials: kubeconfig, --master or the pod's service account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.errors import ConfigError
from workers.kube import kubeconfig as kubeconfigs
from workers.kube.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

# csi-provisioner exits with 255 after a fatal error at startup (F-014).
_EXIT_CODE: Final = 255


@dataclass(frozen=True, slots=True)
class Connection:
    """The address, credentials and connection pool; a reload of the credentials replaces them all.

    Attributes:
        authorization: returns the Authorization header; "" for none.
    """

    base_url: str
    transport: Transport
    authorization: Callable[[], str]


def connect(kubeconfig: str, master: str) -> Connection:
    """Load the client configuration, without opening a connection.

    `master` overrides the address; if both arguments are empty, the pod's service account is used
    (F-010).

    Raises:
        ConfigError: there is no usable configuration; exit code 255.
    """
    try:
        if kubeconfig:
            access = kubeconfigs.from_files(kubeconfig)
        else:
            access = kubeconfigs.nobody() if master else kubeconfigs.in_pod()
        base_url = access.server
        if master:
            base_url = master if "://" in master else f"http://{master}"
        base_url = base_url.rstrip("/")
        transport = Transport(base_url, access.tls, access.proxy)
    except Exception as error:  # reading the file or running its plug-in can raise any exception
        source = f"--kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"cannot load the Kubernetes client configuration ({source}): {reason}. Set "
            "--kubeconfig, KUBECONFIG or --master, or run csi-fleet in a pod",
            exit_code=_EXIT_CODE,
        ) from error
    return Connection(base_url, transport, access.authorization)
