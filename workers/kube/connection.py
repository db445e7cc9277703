"""Where the API server is and how to prove who we are: kubeconfig, --master or in-cluster.

Uses the official client for file formats, exec plugins, TLS and the connection pool only; its
models stay unused (pitfalls 4.1).
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml
from kubernetes import config as kube_config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from urllib3 import ProxyManager
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url
from urllib3.util.ssl_ import create_urllib3_context

from workers.errors import ConfigError
from workers.kube.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from urllib3 import PoolManager

# "fatal" start-up errors of the reference end with 255 (F-014).
_EXIT_CODE: Final = 255
CONNECT_TIMEOUT_SECONDS: Final = 5.0


class _UnverifiedPool(HTTPSConnectionPool):
    """The pool for `insecure-skip-tls-verify`: does not warn at each connection."""

    def _validate_conn(self, conn: Any) -> None:
        if conn.is_closed:
            conn.connect()


@dataclass(frozen=True, slots=True)
class Connection:
    """One generation of address, credentials and pool; replaced as a whole on a reload.

    Without `transport` every request goes through the pool, as watches always do.
    """

    base_url: str
    pool: PoolManager
    configuration: Any
    transport: Transport | None = None

    def authorization(self) -> str | None:
        """Return the Authorization header; re-reads the in-cluster token file each 60 s."""
        try:
            setting = self.configuration.auth_settings().get("BearerToken")
        except (OSError, kube_config.ConfigException):
            # Token being rotated this instant: the old one is mostly still good.
            old: str | None = self.configuration.api_key.get("BearerToken")
            return old
        return str(setting["value"]) if setting else None


def connect(
    kubeconfig: str,
    master: str,
    *,
    pool_size: int,
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """Load the client configuration and prepare the pool; opens no connection yet.

    The environment's KUBECONFIG overrides `kubeconfig`; `master` overrides the address found;
    with none of them the pod's service account is used (F-010).

    Raises:
        ConfigError: nothing usable; exit code 255.
    """
    configuration = _load(environ.get("KUBECONFIG") or kubeconfig, master)
    configuration.connection_pool_maxsize = pool_size
    configuration.keep_alive = True
    pool = RESTClientObject(configuration).pool_manager
    if not configuration.verify_ssl:
        pool.pool_classes_by_scheme = {"http": HTTPConnectionPool, "https": _UnverifiedPool}
    share_tls_context(pool, configuration)
    base_url = configuration.host.rstrip("/")
    return Connection(base_url, pool, configuration, _transport(pool, base_url, pool_size))


def share_tls_context(pool: PoolManager, configuration: Any) -> None:
    """One TLS context for all connections: urllib3 would load the certificates for each anew.

    Files that cannot be read now are left to urllib3, which tells so at the first request.
    """
    if not configuration.host.startswith("https:"):
        return
    keywords = pool.connection_pool_kw
    context = create_urllib3_context(cert_reqs=keywords.get("cert_reqs"))
    authority = {"cafile": keywords.get("ca_certs"), "cadata": keywords.get("ca_cert_data")}
    try:
        if any(authority.values()):
            context.load_verify_locations(**authority)
        else:
            context.load_default_certs()
        if keywords.get("cert_file"):
            context.load_cert_chain(keywords["cert_file"], keywords.get("key_file"))
    except (OSError, ssl.SSLError, ValueError, TypeError):
        return
    for name in ("ca_certs", "ca_cert_data", "cert_file", "key_file"):
        keywords.pop(name, None)
    keywords["ssl_context"] = context


def _transport(pool: PoolManager, base_url: str, pool_size: int) -> Transport | None:
    """Our own exchanges, unless a proxy reads them."""
    if isinstance(pool, ProxyManager) and pool.proxy is not None:
        return None
    try:
        server = pool.connection_from_url(base_url)
        prefix = (parse_url(base_url).path or "").rstrip("/")
    except HTTPError:
        return None
    return Transport(
        server,
        prefix,
        most_kept=pool_size,
        connect_timeout_seconds=CONNECT_TIMEOUT_SECONDS,
    )


# What the loader raises for a file that is absent, no YAML, or YAML of another shape.
_UNREADABLE: Final = (
    kube_config.ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
)


def _load(kubeconfig: str, master: str) -> Any:
    configuration = Configuration()
    try:
        if kubeconfig:
            kube_config.load_kube_config(  # type: ignore[no-untyped-call]  # no types upstream
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        elif not master:
            kube_config.load_incluster_config(  # type: ignore[no-untyped-call]  # same
                client_configuration=configuration
            )
    except _UNREADABLE as error:
        source = f"--kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise ConfigError(
            f"cannot load the Kubernetes client configuration ({source}): "
            f"{' '.join(str(error).split())}; "
            "set --kubeconfig, KUBECONFIG or --master, or run in a pod",
            exit_code=_EXIT_CODE,
        ) from error
    if master:
        configuration.host = master if "://" in master else f"http://{master}"
    return configuration
