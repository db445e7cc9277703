"""Reads the address, TLS settings and credentials from a kubeconfig or a pod's service account.

The rules are those of client-go's tools/clientcmd: of several files, the first one that defines an
entry wins; inline data wins over a path; paths are relative to their file; a `tokenFile` wins over
a `token` and is re-read. Only the old `auth-provider` entries are left to the official client.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - msgspec reads the annotation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from workers.kube.transport import Tls

if TYPE_CHECKING:
    from collections.abc import Callable

_POD_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_FILE_SECONDS: Final = 60.0
# A token that expires within this time is renewed.
_EXPIRY_MARGIN_SECONDS: Final = 300.0


class UnusableError(Exception):
    """The configuration does not describe a usable client; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Access:
    """The address of the API server, and the credentials for it.

    Attributes:
        server: the URL of the API server; "" if only `--master` gives it.
        authorization: returns the Authorization header, "" for none; cheap to call.
        proxy: the URL of a proxy; "" if the file does not name one.
    """

    server: str
    tls: Tls
    authorization: Callable[[], str]
    proxy: str = ""


class _Struct(msgspec.Struct, rename="kebab"):
    pass


class _Cluster(_Struct):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[dict[str, Any]] | None = None


class _Variable(_Struct):
    name: str
    value: str


class _Exec(_Struct, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    provide_cluster_info: bool = False


class _User(_Struct):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(_Struct):
    cluster: str = ""
    user: str = ""


class _NamedCluster(_Struct):
    name: str
    cluster: _Cluster


class _NamedUser(_Struct):
    name: str
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(_Struct):
    name: str
    context: _Context = msgspec.field(default_factory=_Context)


class _File(_Struct):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class _Credential(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    status: _Credential


def nobody() -> Access:
    """Return an Access without credentials, for `--master` alone."""
    return Access("", Tls(), lambda: "")


def in_pod() -> Access:
    """Return the access that this pod's service account has.

    Raises:
        UnusableError: the process runs outside a pod, or the pod has no service account.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    authority, token = _POD_FOLDER / "ca.crt", _TokenFile(_POD_FOLDER / "token")
    if not (host and port):
        raise UnusableError("csi-fleet does not run in a pod: KUBERNETES_SERVICE_HOST is not set")
    if not authority.is_file():
        raise UnusableError(f"{authority} does not exist")
    token()
    place = f"[{host}]" if ":" in host else host
    return Access(f"https://{place}:{port}", Tls(authorities=str(authority)), token)


def from_files(paths: str) -> Access:
    """Return the connection settings of the current context in one or more kubeconfig files.

    Raises:
        UnusableError: none of the files exists, or an entry is missing or invalid.
    """
    files = [(path, _decoded(path)) for path in map(_expanded, paths.split(os.pathsep)) if path]
    found = [(path, file) for path, file in files if file is not None]
    if not found:
        raise UnusableError("the file does not exist")
    name = next((file.current_context for _, file in found if file.current_context), "")
    _, context = _named("context", name, [(p, file.contexts) for p, file in found])
    cluster_file, cluster = _named(
        "cluster", context.context.cluster, [(p, file.clusters) for p, file in found]
    )
    user_file, user = _named("user", context.context.user, [(p, file.users) for p, file in found])
    authorization, certificate, key = _user(user.user, user_file, cluster.cluster, paths)
    tls = Tls(
        authorities=_data_or_path(
            "certificate-authority",
            cluster.cluster.certificate_authority_data,
            cluster.cluster.certificate_authority,
            cluster_file,
        ),
        certificate=certificate,
        key=key,
        server_name=cluster.cluster.tls_server_name,
        is_verified=not cluster.cluster.insecure_skip_tls_verify,
    )
    return Access(cluster.cluster.server, tls, authorization, cluster.cluster.proxy_url)


def _user(
    user: _User, file: Path, cluster: _Cluster, paths: str
) -> tuple[Callable[[], str], str | bytes | None, str | bytes | None]:
    """Return a function for the Authorization header, the client certificate and its key."""
    certificate = _data_or_path(
        "client-certificate", user.client_certificate_data, user.client_certificate, file
    )
    key = _data_or_path("client-key", user.client_key_data, user.client_key, file)
    if user.token_file:
        return _TokenFile(file.parent / user.token_file), certificate, key
    if user.token:
        return _always(f"Bearer {user.token}"), certificate, key
    if user.username:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return _always(f"Basic {pair}"), certificate, key
    if user.exec is not None:
        plugin = _ExecToken(user.exec, cluster, file)
        credential = plugin.credential
        if credential.client_certificate_data:
            certificate = credential.client_certificate_data.encode()
            key = credential.client_key_data.encode()
        return plugin, certificate, key
    if user.auth_provider is not None:
        return _by_official_client(paths), certificate, key
    return _always(""), certificate, key


def _always(header: str) -> Callable[[], str]:
    return lambda: header


class _TokenFile:
    """The Authorization header from a token file; the file is reread because it may be replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = ""
        self._until = float("-inf")

    def __call__(self) -> str:
        now = time.monotonic()
        if now >= self._until:
            try:
                token = self._path.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                token, reason = "", f"cannot read {self._path}: {error}"
            else:
                reason = f"{self._path} is empty"
            if token:
                self._header = f"Bearer {token}"
                self._until = now + _TOKEN_FILE_SECONDS
            elif not self._header:
                raise UnusableError(reason)
            # An unreadable file is assumed to be in the middle of a replacement, so the previous
            # token is still valid.
        return self._header


class _ExecToken:
    """The token from an exec plug-in; the plug-in is run again shortly before the token expires."""

    def __init__(self, plugin: _Exec, cluster: _Cluster, file: Path) -> None:
        self._plugin = plugin
        self._cluster = cluster
        self._file = file
        self._lock = threading.Lock()
        self.credential = self._run()

    def __call__(self) -> str:
        if self._is_ending():
            with self._lock:
                if self._is_ending():
                    self.credential = self._run()
        return f"Bearer {self.credential.token}" if self.credential.token else ""

    def _is_ending(self) -> bool:
        end = self.credential.expiration_timestamp
        # Only the token's expiry is checked: a client certificate is replaced together with the
        # connections, after a 401.
        return bool(
            end and self.credential.token and end.timestamp() < time.time() + _EXPIRY_MARGIN_SECONDS
        )

    def _run(self) -> _Credential:
        plugin, spec = self._plugin, {"interactive": sys.stdin is not None and sys.stdin.isatty()}
        command = plugin.command
        if os.sep in command:
            command = str(self._file.parent / command)
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        if plugin.provide_cluster_info:
            info["spec"] = {**spec, "cluster": self._cluster_info()}
        environment = {
            **os.environ,
            **{one.name: one.value for one in plugin.env or ()},
            "KUBERNETES_EXEC_INFO": json.dumps(info),
        }
        try:
            done = subprocess.run(  # noqa: S603 - the user's kubeconfig names the program
                [command, *(plugin.args or ())],
                env=environment,
                stdin=None if spec["interactive"] else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if spec["interactive"] else subprocess.PIPE,
                check=False,
            )
        except OSError as error:
            raise UnusableError(f"cannot run {command}: {error}") from error
        if done.returncode:
            said = (done.stderr or b"").decode("utf-8", "replace")
            raise UnusableError(f"{command} exited with code {done.returncode}: {said}")
        try:
            answer = msgspec.json.decode(done.stdout, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise UnusableError(f"{command} printed no ExecCredential: {error}") from error
        if answer.api_version != plugin.api_version:
            raise UnusableError(
                f"{command} returned API version {answer.api_version}, not {plugin.api_version}"
            )
        return answer.status

    def _cluster_info(self) -> dict[str, Any]:
        cluster = self._cluster
        info = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": cluster.certificate_authority_data,
            "proxy-url": cluster.proxy_url,
            "config": next(
                (
                    one.get("extension")
                    for one in cluster.extensions or ()
                    if one.get("name") == "client.authentication.k8s.io/exec"
                ),
                None,
            ),
        }
        return {name: value for name, value in info.items() if value}


def _by_official_client(paths: str) -> Callable[[], str]:
    """Return a function for the Authorization header of an old `auth-provider` entry (oidc).

    This uses the official client, which needs 40 MiB. Such entries are rare.
    """
    from kubernetes import client, config  # noqa: PLC0415 - see above

    configuration = client.Configuration()
    untyped: Any = config
    untyped.load_kube_config(
        config_file=paths, client_configuration=configuration, persist_config=False
    )

    def authorization() -> str:
        setting = configuration.auth_settings().get("BearerToken")
        return str(setting["value"]) if setting else ""

    return authorization


def _expanded(path: str) -> Path | None:
    return Path(path).expanduser() if path else None


def _decoded(path: Path | None) -> _File | None:
    """Return the decoded file; None if it does not exist, because kubectl skips such a file too."""
    if path is None or not path.exists():
        return None
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=_File)
    except Exception as error:  # the YAML library has many exceptions
        raise UnusableError(f"{path} is not a kubeconfig file: {error}") from error


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def _named(
    what: str, name: str, lists: list[tuple[Path, list[_Named] | None]]
) -> tuple[Path, _Named]:
    for path, items in lists:
        for item in items or ():
            if item.name == name:
                return path, item
    raise UnusableError(f"there is no {what} {name!r}")


def _data_or_path(what: str, data: str, path: str, file: Path) -> str | bytes | None:
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UnusableError(f"{what}-data is not base64: {error}") from error
    if not path:
        return None
    found = file.parent / path
    if not found.is_file():
        raise UnusableError(f"{what}: {found} does not exist")
    return str(found)
