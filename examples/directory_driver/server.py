"""The driver's gRPC server, which also makes it misbehave.

Every unary method of the services goes through `_Method`: record the start, obey the control file,
do the work, record the end. Secrets are removed before anything is recorded.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import json_format, message_factory

from csi_client import messages as csi
from examples.directory_driver.storage import StorageError, entry_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from examples.directory_driver.behaviour import Control, Rule
    from examples.directory_driver.journal import Journal, Running

SERVICES = ("Identity", "Controller", "GroupController", "Node")
STRIPPED = "***stripped***"
THREADS = 64


@dataclass(frozen=True, slots=True)
class TlsServerFiles:
    """PEM files for `tcp://` endpoints; with `client_ca` a client must have a certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def start_server(
    driver: object,
    control: Control,
    journal: Journal,
    endpoint: str,
    tls: TlsServerFiles | None = None,
) -> tuple[grpc.Server, int]:
    """Serve `driver` at `unix:///path` or `tcp://host:port`; returns the server and its port.

    Methods that `driver` does not implement answer UNIMPLEMENTED.
    """
    server = grpc.server(
        futures.ThreadPoolExecutor(THREADS, thread_name_prefix="csi"),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)],
    )
    for service in SERVICES:
        descriptor = csi.DESCRIPTOR.services_by_name[service]
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                _Method(
                    method.name, getattr(driver, _snake(method.name)), control, journal, answer_type
                ),
                request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
                response_serializer=_serialize,
            )
            for method in descriptor.methods
            if hasattr(driver, _snake(method.name))
            for answer_type in [message_factory.GetMessageClass(method.output_type)]
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(descriptor.full_name, handlers),)
        )
    port = _bind(server, endpoint, tls)
    server.start()
    return server, port


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Method:
    def __init__(
        self,
        name: str,
        work: Callable[[Any], Message],
        control: Control,
        journal: Journal,
        answer_type: type[Message],
    ) -> None:
        self._name = name
        self._work = work
        self._control = control
        self._journal = journal
        self._answer_type = answer_type

    def __call__(self, request: Message, context: grpc.ServicerContext) -> Message | bytes:
        names, ids = _subjects(self._name, request)
        view, secrets = _without_secrets(request)
        running, others = self._journal.start(self._name, ids, view, secrets, context.is_active)
        given = [f"{key}={value}" for key, value in getattr(request, "parameters", {}).items()]
        rule = self._control.rule_for(self._name, (*names, *ids, *given))
        try:
            answer = self._obey(rule, request, context, others)
        except StorageError as error:
            self._journal.end(running, error.code, error.message, {})
            context.abort(grpc.StatusCode[error.code], error.message)
        except BaseException as error:
            self._journal.end(running, "UNKNOWN", repr(error), {})
            raise
        shown = {} if isinstance(answer, bytes) else _json(answer)
        self._journal.end(running, "OK", "", shown)
        return answer

    def _obey(
        self, rule: Rule, request: Message, context: grpc.ServicerContext, others: list[Running]
    ) -> Message | bytes:
        if others and rule.abort_pending:
            raise StorageError("ABORTED", "an operation for this volume is pending")
        if delay := rule.delay():
            # The delay continues if the client gives up, as real storage continues its work.
            gone = threading.Event()
            if rule.gives_up and not context.add_callback(gone.set):
                gone.set()
            if gone.wait(delay):
                raise StorageError("CANCELLED", "the client gave up")
        answer: Message | None = None
        if rule.after_work or not (rule.hang or rule.code or rule.skip_work):
            answer = self._work(request)
        if rule.hang:
            gone = threading.Event()
            if context.add_callback(gone.set):
                gone.wait()
            raise StorageError("CANCELLED", "the client gave up")
        if rule.code:
            raise StorageError(rule.code, rule.message)
        if rule.answer_base64 is not None:
            return base64.b64decode(rule.answer_base64)
        if rule.answer is not None:
            return json_format.ParseDict(rule.answer, self._answer_type())
        assert answer is not None
        return answer


def _subjects(method: str, request: Any) -> tuple[list[str], list[str]]:
    """Return the names and ids that a call is about; for overlaps a name counts as its id."""
    names = [request.name] if getattr(request, "name", "") else []
    ids = [entry_id("vol" if method == "CreateVolume" else "snap", name) for name in names]
    given = filter(None, (getattr(request, f, "") for f in ("volume_id", "snapshot_id")))
    ids += [one.partition(".")[0] for one in given]  # without the node
    return names, ids


def _without_secrets(request: Any) -> tuple[dict[str, Any], dict[str, str]]:
    secrets = dict(getattr(request, "secrets", {}))
    view = _json(request)
    if secrets:
        view["secrets"] = STRIPPED
    return view, secrets


def _json(message: Message) -> dict[str, Any]:
    text = json_format.MessageToJson(message, preserving_proto_field_name=True)
    content: dict[str, Any] = json.loads(text)
    return content


def _serialize(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _bind(server: grpc.Server, endpoint: str, tls: TlsServerFiles | None) -> int:
    scheme, _, place = endpoint.partition("://")
    if scheme == "unix":
        port = server.add_insecure_port(f"unix:{place}")
        Path(place).chmod(0o660)  # for a worker in the same group that is not root
        return port
    if scheme != "tcp":
        raise SystemExit(f"endpoint {endpoint!r} is neither unix:///path nor tcp://host:port")
    if tls is None:
        return server.add_insecure_port(place)
    credentials = grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.certificate.read_bytes())],
        root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None,
        require_client_auth=tls.client_ca is not None,
    )
    return server.add_secure_port(place, credentials)
