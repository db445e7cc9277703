"""Where the API server is and how to prove who we are: kubeconfig, --master or in-cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workers.errors import ConfigError
from workers.kube import kubeconfig as kubeconfigs
from workers.kube.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable

# csi-provisioner ends with 255 after a fatal error at its start (F-014).
_EXIT_CODE: Final = 255


@dataclass(frozen=True, slots=True)
class Connection:
    """One generation of address, credentials and connections; replaced as a whole on a reload.

    Attributes:
        authorization: returns the Authorization header, "" for none.
    """

    base_url: str
    transport: Transport
    authorization: Callable[[], str]


def connect(kubeconfig: str, master: str) -> Connection:
    """Load the client configuration; opens no connection yet.

    `master` overrides the address found; without both the pod's service account is used (F-010).

    Raises:
        ConfigError: nothing usable; exit code 255.
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
    except Exception as error:  # whatever the file, its plug-in or its issuer raise
        source = f"--kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"cannot load the Kubernetes client configuration ({source}): {reason}; "
            "set --kubeconfig, KUBECONFIG or --master, or run in a pod",
            exit_code=_EXIT_CODE,
        ) from error
    return Connection(base_url, transport, access.authorization)
