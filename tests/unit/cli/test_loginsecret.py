"""Which Secret holds the Redis login of a driver's worker."""

from __future__ import annotations

import base64

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import loginsecret
from workers.kube import paths
from workers.kube.errors import ForbiddenError

HOME, DRIVER = "vendor", "nfs.csi.k8s.io"
USUAL = loginsecret.USUAL


def api_with(**secrets):
    """Return an API with these Secrets; each value is the login's driver, None means no user."""
    api = MemoryApi()
    for name, driver in secrets.items():
        data = dict.fromkeys(("password", "records-key"), "eA==")
        if driver is not None:
            data["username"] = base64.b64encode(f"worker.{driver}".encode()).decode()
        metadata = {"name": name.replace("_", "-"), "namespace": HOME}
        api.add(paths.SECRETS, {"metadata": metadata, "data": data})
    return api


def choose(api, given=""):
    return loginsecret.choose(api.kube, HOME, DRIVER, given)


@pytest.mark.parametrize(
    ("secrets", "given", "name"),
    [
        ({"redis_password_worker": "other", "second": DRIVER}, "", "second"),
        ({"redis_password_worker": DRIVER, "second": "other"}, "", USUAL),
        ({"redis_password_worker": None}, "", USUAL),  # from an earlier release, or created by hand
        ({"redis_password_worker": None, "second": DRIVER}, "", "second"),
        ({"one": DRIVER, "two": DRIVER}, "two", "two"),
        ({"own": None}, "own", "own"),
        ({}, "", USUAL),  # the caller reports that none exists
    ],
)
def test_the_secret_of_the_drivers_user_is_taken(secrets, given, name):
    assert choose(api_with(**secrets), given) == (name, [])


@pytest.mark.parametrize(
    ("secrets", "given", "says"),
    [
        ({"one": DRIVER, "two": DRIVER}, "", "worker.nfs.csi.k8s.io: one, two. Choose one"),
        ({"redis_password_worker": "other"}, "", "the Redis user worker.other, not of"),
        ({"one": DRIVER, "two": "other"}, "two", "the Redis user worker.other, not of"),
    ],
)
def test_the_login_of_another_driver_and_two_for_one_are_refused(secrets, given, says):
    _, [problem] = choose(api_with(**secrets), given)
    assert says in problem.text


def test_secrets_that_are_no_login_do_not_count():
    api = api_with(redis_password_worker=None)
    metadata = {"name": "odd", "namespace": HOME}
    user = base64.b64encode(f"worker.{DRIVER}".encode()).decode()
    for data in ({"username": user}, {"username": "%%%"}, {"username": "/w=="}, None):
        api.add(paths.SECRETS, {"metadata": metadata, "data": data})
        assert choose(api) == (USUAL, [])


def test_who_may_not_list_secrets_uses_the_usual_one():
    api = api_with(redis_password_worker=DRIVER, second=DRIVER)
    path = f"namespaces/{HOME}/secrets"
    api.fail("get", path, ForbiddenError(403, "Forbidden", "no"))
    assert choose(api) == (USUAL, [])
