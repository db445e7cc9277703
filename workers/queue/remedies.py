"""Explains in one line why a connection to Redis failed and what to do about it."""

from __future__ import annotations

from typing import Final

# Error messages from Redis or its client, each with the message to show instead.
_INSTEAD: Final = (
    (
        ("HELLO must be called", "Authentication required", "NOAUTH"),
        "Redis requires a password. Set --redis-password-file or CSI_FLEET_REDIS_PASSWORD",
    ),
    (
        ("invalid username-password", "WRONGPASS"),
        (
            "Redis rejects the user or the password. Check --redis-username and "
            "--redis-password-file (or CSI_FLEET_REDIS_PASSWORD)"
        ),
    ),
    (
        ("without any password configured",),
        "a password is set, but this Redis has none. Remove --redis-password-file",
    ),
)
_TLS: Final = "check that this Redis has TLS, which rediss:// in --redis-url requires"
# Error messages, each with a question to append to it.
_AFTER: Final = (
    (("[SSL",), _TLS),
    (("Timeout connecting",), f"check --redis-url; with rediss://, {_TLS}"),
    (
        ("Timeout reading", "Timeout writing"),
        "Redis accepts connections but does not reply; check its pod, its log and its CPU",
    ),
    ((" connecting to ",), "check that Redis is running and that --redis-url is correct"),
)


def told(error: BaseException) -> str:
    """Return an error's message for a log or a user."""
    text = " ".join(str(error).split()) or type(error).__name__
    for words, instead in _INSTEAD:
        if any(word in text for word in words):
            return f"redis: {instead}"
    for words, after in _AFTER:
        if any(word in text for word in words):
            return f"redis: {text.rstrip('.')}; {after}"
    return f"redis: {text}"
