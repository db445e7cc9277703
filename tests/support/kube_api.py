"""A Kubernetes API client for tests and the demo: raw JSON over `requests`.

Tests must not see the cluster through the code that they test, so this client does not use
`workers.kube`.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import requests
import urllib3
import yaml

JsonObject = dict[str, Any]


class KubeApiError(RuntimeError):
    """The API server refused a request; `status` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubeApi:
    """One user's view of one cluster, from a kubeconfig file (token or client certificate)."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        current = config.get("current-context")
        context = _named(config["contexts"], current)["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self.server: str = cluster["server"].rstrip("/")
        self._files = tempfile.TemporaryDirectory(prefix="kube-api-")
        self._resources: dict[tuple[str, str], JsonObject] = {}
        self._session = requests.Session()
        self._session.trust_env = False  # otherwise REQUESTS_CA_BUNDLE would override `verify`
        self._session.verify = self._authority(cluster)
        if token := user.get("token"):
            self._session.headers["Authorization"] = f"Bearer {token}"
        certificate = self._file(user, "client-certificate")
        key = self._file(user, "client-key")
        if certificate and key:
            self._session.cert = (certificate, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and remove certificate files."""
        self._session.close()
        self._files.cleanup()

    def request(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout_seconds: float = 30,
        params: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Send one request; return the decoded answer.

        Raises:
            KubeApiError: any status from 400 up, with the Status message.
        """
        answer = self._session.request(
            verb,
            self.server + path,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            params=params,
            timeout=timeout_seconds,
        )
        if answer.status_code >= 400:
            raise KubeApiError(answer.status_code, _status_message(answer))
        decoded = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
        return decoded if isinstance(decoded, dict) else {}

    def text(self, path: str) -> str:
        """Send a GET whose answer is not JSON, for example `/metrics`."""
        answer = self._session.get(self.server + path, timeout=30)
        if answer.status_code >= 400:
            raise KubeApiError(answer.status_code, _status_message(answer))
        return answer.text

    @property
    def session(self) -> requests.Session:
        """Return a session with the credentials and the CA, for a caller with its own
        connections."""
        return self._session

    def is_ready(self) -> bool:
        """Return True if `/readyz` reports ok now.

        Raises:
            requests.exceptions.SSLError: another server answered, or the CA is wrong.
        """
        try:
            self.request("GET", "/readyz", timeout_seconds=2)
        except requests.exceptions.SSLError:
            raise
        except (requests.RequestException, KubeApiError):
            return False
        return True

    def create(self, manifest: Mapping[str, Any]) -> JsonObject:
        """POST a full manifest (with apiVersion and kind)."""
        return self.request("POST", self._collection(manifest), manifest)

    def apply(self, manifest: Mapping[str, Any]) -> JsonObject:
        """Server-side apply: creates or updates, safe to repeat."""
        return self.request(
            "PATCH",
            f"{self._collection(manifest)}/{manifest['metadata']['name']}",
            manifest,
            content_type="application/apply-patch+yaml",
            params={"fieldManager": "csi-fleet-tests", "force": "true"},
        )

    def apply_file(self, path: Path) -> list[JsonObject]:
        """Apply every document of a YAML file."""
        documents = yaml.safe_load_all(path.read_text())
        return [self.apply(document) for document in documents if document]

    def get(self, path: str) -> JsonObject:
        """GET by path, for example `/api/v1/namespaces/default/persistentvolumeclaims/data`."""
        return self.request("GET", path)

    def find(self, path: str) -> JsonObject | None:
        """Like `get`, but return None if there is no such object."""
        try:
            return self.get(path)
        except KubeApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **params: str) -> list[JsonObject]:
        """All items of a collection."""
        found: list[JsonObject] = self.request("GET", path, params=params)["items"]
        return found

    def patch(self, path: str, body: Any) -> JsonObject:
        """JSON merge patch."""
        return self.request("PATCH", path, body, content_type="application/merge-patch+json")

    def delete(self, path: str) -> None:
        """DELETE in the background; it is no error if the object is already gone."""
        try:
            self.request("DELETE", path, {"propagationPolicy": "Background"})
        except KubeApiError as error:
            if error.status != 404:
                raise

    def events_of(self, namespace: str, name: str) -> list[JsonObject]:
        """The core/v1 events on one object, oldest first."""
        found = self.items(
            f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={name}"
        )
        return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def _collection(self, manifest: Mapping[str, Any]) -> str:
        """The collection's path, found by discovery as kubectl does (cached per group version)."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resource = self._resources.get((version, kind))
        if resource is None:
            for entry in self.get(root)["resources"]:
                if "/" not in entry["name"]:
                    self._resources[version, entry["kind"]] = entry
            resource = self._resources[version, kind]
        if not resource["namespaced"]:
            return f"{root}/{resource['name']}"
        namespace = manifest["metadata"].get("namespace", "default")
        return f"{root}/namespaces/{namespace}/{resource['name']}"

    def _authority(self, cluster: Mapping[str, Any]) -> str | bool:
        if cluster.get("insecure-skip-tls-verify"):
            # Requested by the caller.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            return False
        return self._file(cluster, "certificate-authority") or True

    def _file(self, section: Mapping[str, Any], field: str) -> str | None:
        """A path for inline `<field>-data`, or the path that the kubeconfig names itself."""
        data = section.get(f"{field}-data")
        if data is None:
            path: str | None = section.get(field)
            return path
        target = Path(self._files.name, field)
        target.write_bytes(base64.b64decode(data))
        target.chmod(0o600)
        return str(target)


def _named(entries: list[JsonObject], name: str | None) -> JsonObject:
    for entry in entries:
        if name is None or entry["name"] == name:
            return entry
    raise KeyError(f"kubeconfig has no {name!r}")


def _status_message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:400]
