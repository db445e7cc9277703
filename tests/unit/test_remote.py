"""Remote control of workers: Flower can only read through it (SEC2-4)."""

from __future__ import annotations

import uuid
from unittest.mock import MagicMock

import pytest
from celery.worker.control import Panel

from workers.app import make_app
from workers.config.load import parse
from workers.tasks.remote import QUESTIONS

ASKER, TICKET = str(uuid.uuid4()), str(uuid.uuid4())


@pytest.fixture
def worker(monkeypatch):
    """Return a function that sends a message to a worker and returns its calls and answers."""
    app = make_app(parse("worker", ["--redis-url=redis://127.0.0.1:1/0", "--csi-address=/x"], {}))
    called, answers = [], []
    handlers = {
        name: lambda _state, _name=name, **arguments: called.append((_name, arguments))
        for name in Panel.data
    }
    listener = app.control.mailbox.Node("w@h", handlers=handlers, channel=MagicMock())
    monkeypatch.setattr(
        listener.mailbox,
        "_publish_reply",
        lambda data, exchange, routing_key, ticket, **_: answers.append(
            (exchange, routing_key, ticket, data)
        ),
    )

    def ask(body):
        called.clear()
        answers.clear()
        listener.handle_message(body)
        return list(called), list(answers)

    return ask


def question(method="ping", **more):
    reply_to = {"exchange": "reply.celery.pidbox", "routing_key": ASKER}
    asked = {"method": method, "arguments": {}, "reply_to": reply_to, "ticket": TICKET}
    return asked | more


@pytest.mark.parametrize("method", sorted(QUESTIONS))
def test_what_flower_asks_is_answered_to_the_list_of_answers(worker, method):
    called, answers = worker(question(method, arguments={"taskinfoitems": ["app"]}))
    assert called == [(method, {})], "arguments are dropped"
    assert answers == [("", f"{ASKER}.reply.celery.pidbox", TICKET, {"w@h": None})]


@pytest.mark.parametrize("method", [*sorted(set(Panel.data) - QUESTIONS), "", None, [], 7])
def test_no_other_command_is_heard(worker, method):
    """This covers add_consumer, rate_limit, revoke, shutdown and anything that Celery adds."""
    assert worker(question(method)) == ([], [])


def test_celery_knows_what_is_allowed():
    assert set(Panel.data) >= QUESTIONS


@pytest.mark.parametrize(
    "change",
    [
        {"reply_to": {"exchange": "", "routing_key": "csifleet:intents:d"}},
        {"reply_to": {"exchange": "", "routing_key": "drv.other.example.org"}},
        {"reply_to": {"exchange": "", "routing_key": f"{ASKER}\n"}},
        {"reply_to": {"exchange": "", "routing_key": [ASKER]}},
        {"reply_to": "csifleet:intents:d"},
        {"reply_to": None},
        {"ticket": "x" * 4_000_000},
    ],
)
def test_an_answer_goes_nowhere_else(worker, change):
    """It reaches neither a key of csi-fleet nor another list, whatever the exchange is."""
    called, answers = worker({**question(), **change})
    assert (called, answers) == ([("ping", {})], [])


@pytest.mark.parametrize("exchange", ["", "celeryev", "reply.celery.pidbox", 7])
def test_the_table_of_an_exchange_is_not_asked(worker, exchange):
    """Flower can write `_kombu.binding.reply.celery.pidbox`, which names lists for answers."""
    place = {"exchange": exchange, "routing_key": ASKER}
    (answer,) = worker(question(reply_to=place))[1]
    assert answer[:2] == ("", f"{ASKER}.reply.celery.pidbox")


def test_only_a_list_of_names_chooses_workers(worker):
    """Patterns from the sender are ignored, because one could keep a worker busy forever."""
    assert worker(question(destination=["other@h"])) == ([], [])
    assert worker(question(destination=["w@h"]))[0]
    assert worker(question(destination=7))[0], "anything else is no choice"
    never = {"pattern": "other", "matcher": "pcre", "destination": None}
    assert worker(question(**never))[0], "the expression is not looked at"


@pytest.mark.parametrize("body", [None, [], "ping", 7, {}])
def test_what_is_no_question_is_dropped(worker, body):
    assert worker(body) == ([], [])
