"""The one exception of the driver: a gRPC status with its text."""

from __future__ import annotations


class RpcError(Exception):
    """Ends a call.

    Args:
        code: name in grpc.StatusCode, such as `NOT_FOUND`.
        message: what failed and on what; no secret.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RpcError:
    """The request can never work."""
    return RpcError("INVALID_ARGUMENT", message)


def not_found(message: str) -> RpcError:
    """What the request names does not exist."""
    return RpcError("NOT_FOUND", message)
