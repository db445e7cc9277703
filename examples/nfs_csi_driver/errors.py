"""The driver's only exception: a gRPC status with its text."""

from __future__ import annotations


class RpcError(Exception):
    """Ends a call with an error.

    Args:
        code: name in grpc.StatusCode, such as `NOT_FOUND`.
        message: what failed, and on which object; no secret.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> RpcError:
    """Return the error for a request that can never succeed."""
    return RpcError("INVALID_ARGUMENT", message)


def not_found(message: str) -> RpcError:
    """Return the error for a request that names a missing object."""
    return RpcError("NOT_FOUND", message)
