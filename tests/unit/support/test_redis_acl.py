"""The shipped ACL follows the code, as a missing key or command fails only in production."""

from __future__ import annotations

import re

import pytest

from tests.support import redis_acl
from tests.support.redis_acl import COMMANDS, READS, WRITES
from workers.queue import scripts
from workers.queue.names import NAMES


def allowed(user):
    return {one.partition("|")[0] for one in " ".join(COMMANDS[user]).split()}


@pytest.mark.parametrize("user", ["watcher", "worker"])
def test_every_command_of_a_script_is_allowed_to_those_who_run_scripts(user):
    texts = [one.read_text() for one in scripts._LUA.iterdir() if one.name.endswith(".lua")]
    used = {
        found.lower() for text in texts for found in re.findall(r"redis\.p?call\(\s*'(\w+)'", text)
    }
    assert {"zadd", "hset", "time"} <= used, "the pattern still finds calls"
    assert used <= allowed(user)


@pytest.mark.parametrize("user", ["watcher", "worker", redis_acl.DRIVER_USER])
def test_the_users_of_our_scripts_only_look_at_celerys_lists(user):
    """A script that could write there could start any task with a forged message."""
    (line,) = [one for one in redis_acl.text().splitlines() if one.startswith(f"user {user} ")]
    assert [one for one in line.split() if "~drv" in one] == ["%R~drv.*"]
    assert not {"rpop", "lpop", "brpop", "blpop", "lmove"} & allowed(user)


def test_no_script_calls_a_command_by_a_computed_name():
    """The test above would not see such a call."""
    for one in scripts._LUA.iterdir():
        if one.name.endswith(".lua"):
            assert not re.findall(r"redis\.p?call\(\s*[^'\s]", one.read_text()), one.name


def test_acl_file_is_made_from_the_declared_keys():
    assert redis_acl.FILE.read_text() == redis_acl.text(), "run python -m tests.support.redis_acl"


def test_functions_and_page_are_of_these_scripts_and_rights():
    remedy = "run python -m tests.support.redis_acl"
    assert redis_acl.FUNCTIONS.read_text() == redis_acl.functions(), remedy
    page = redis_acl.PAGE.read_text()
    assert page == redis_acl.page(page), remedy
    assert redis_acl.matrix() in page


def test_every_owner_of_keys_was_thought_of():
    owners = {entry.owner for entry in NAMES.values()}
    assert owners == WRITES["worker"] | READS["worker"]
    assert owners - {"events", "shadow"} == WRITES["watcher"] | READS["watcher"]
