"""The gRPC server: finds methods by name, turns errors into statuses, logs calls (NF-002).

Methods that no service implements answer UNIMPLEMENTED. A call continues after its client has given
up (NF-083): a long copy is finished, and the repeated call finds it.
"""

from __future__ import annotations

import logging
import re
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import message_factory

from csi_client import messages as csi
from csi_client.redact import redact
from examples.nfs_csi_driver.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

_log = logging.getLogger(__name__)

THREADS: Final = 32
QUIET: Final = frozenset({"Probe", "NodeGetCapabilities", "NodeGetVolumeStats"})


class EndpointError(Exception):
    """The server cannot listen on the endpoint."""


def start(endpoint: str, services: Sequence[object]) -> grpc.Server:
    """Serve at `unix:///path`, `unix://path` or `tcp://host:port`.

    Raises:
        EndpointError: the endpoint has another form, or is in use.
    """
    server = grpc.server(futures.ThreadPoolExecutor(THREADS, thread_name_prefix="csi"))
    for name in ("Identity", "Controller", "Node"):
        descriptor = csi.DESCRIPTOR.services_by_name[name]
        handlers = {}
        for method in descriptor.methods:
            work = _find(services, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
            if work is not None:
                request_type = message_factory.GetMessageClass(method.input_type)
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    _guarded(method.name, work),
                    request_deserializer=request_type.FromString,
                    response_serializer=_serialize,
                )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(descriptor.full_name, handlers),)
        )
    scheme, _, place = endpoint.partition("://")
    if scheme not in {"unix", "tcp"} or not place:
        raise EndpointError(f"endpoint {endpoint!r} is neither unix:///path nor tcp://host:port")
    if scheme == "unix":
        Path(place).unlink(missing_ok=True)  # left by an earlier process
    try:
        server.add_insecure_port(f"unix:{place}" if scheme == "unix" else place)
    except RuntimeError as error:
        raise EndpointError(f"cannot listen on {endpoint}: {error}") from error
    server.start()
    return server


def _find(services: Sequence[object], name: str) -> Callable[[Any], Message] | None:
    return next((getattr(one, name) for one in services if hasattr(one, name)), None)


def _guarded(
    name: str, work: Callable[[Any], Message]
) -> Callable[[Any, grpc.ServicerContext], Message]:
    level = logging.DEBUG if name in QUIET else logging.INFO

    def call(request: Any, context: grpc.ServicerContext) -> Message:
        _log.log(level, "GRPC call %s %s", name, redact(request))
        try:
            answer = work(request)
        except RpcError as error:
            _log.warning("GRPC error %s %s: %s", name, error.code, error.message)
            context.abort(grpc.StatusCode[error.code], error.message)
        except Exception as error:  # noqa: BLE001 - a bug must end only this call
            _log.exception("GRPC error %s", name)
            context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
        _log.log(level, "GRPC response %s %s", name, redact(answer))
        return answer

    return call


def _serialize(answer: Message) -> bytes:
    return answer.SerializeToString()
