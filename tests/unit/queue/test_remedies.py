"""The error for an unusable Redis says what to do about it."""

from __future__ import annotations

import pytest
import redis

from workers.errors import QueueUnavailable
from workers.queue.connection import redis_errors

HELLO = (
    "HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> "
    "<pass> option can be used to authenticate the client"
)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (redis.AuthenticationError(HELLO), "Redis requires a password. Set --redis-password-file"),
        (
            redis.AuthenticationError("Authentication required."),
            "Redis requires a password. Set --r",
        ),
        (
            redis.AuthenticationError("invalid username-password pair or user is disabled."),
            "--redis-username and --redis-password-file",
        ),
        (
            redis.AuthenticationError(
                "AUTH <password> called without any password configured for the default user."
            ),
            "Remove --redis-password-file",
        ),
        (
            redis.ConnectionError("Error 1 connecting to h:1. [SSL: WRONG_VERSION_NUMBER] wrong."),
            "; check that this Redis has TLS, which rediss:// in --redis-url requires",
        ),
        (
            redis.TimeoutError("Timeout connecting to server"),
            "with rediss://, check that this Redis",
        ),
        (
            redis.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."),
            "Connection refused; check that Redis is running and that --redis-url is correct",
        ),
    ],
)
def test_the_remedy_is_named(error, remedy):
    with pytest.raises(QueueUnavailable) as caught, redis_errors():
        raise error
    assert remedy in str(caught.value)
    assert str(caught.value).startswith("redis: ")
    assert "\n" not in str(caught.value)


def test_what_nobody_can_mend_is_told_as_it_is():
    with pytest.raises(QueueUnavailable, match=r"^redis: LOADING data$"), redis_errors():
        raise redis.RedisError("LOADING data")
