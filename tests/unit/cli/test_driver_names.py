"""Driver names on the command line: served drivers, and an unknown one."""

from __future__ import annotations

import pytest

from tests.support.memory_api import MemoryApi
from workers.cli import doctor, failed, pause, pending, shadow, status
from workers.cli.tools import Tools
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import ConfigError
from workers.explain import queueing
from workers.explain.serving import PROVISIONER, Served
from workers.kube import paths
from workers.queue.registry import DriverRegistry
from workers.queue.shadows import Shadows

# The driver name of controllers that need no driver, such as the snapshot-controller.
DRIVERLESS = ""


@pytest.fixture
def tools(redis_client, redis_server):
    """Return a command's tools: these drivers in Redis, a cluster with one class, of `alpha`."""
    api = MemoryApi()
    api.add(paths.STORAGE_CLASSES, {"metadata": {"name": "fast"}, "provisioner": "alpha"})

    def make(command, *flags, served=("", "alpha")):
        for name in served:
            DriverRegistry(redis_client).register(name, {"name": name}, ttl_seconds=60)
        made = Tools(parse(command, [f"--redis-url={redis_server.url}", *flags], {}))
        made.kube = api.kube
        return made

    return make


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ((DRIVERLESS, "alpha"), ("ok", "alpha")),
        ((DRIVERLESS,), ("FAIL", "no driver is served")),
        ((), ("FAIL", "no driver is served")),
    ],
)
def test_doctor_tells_drivers_alone(tools, served, said):
    found = list(doctor.system(tools(Command.DOCTOR, served=served)))
    assert [(one.state, one.text) for one in found if one.check == "drivers"] == [said]


def test_pause_names_what_is_served(tools, capsys):
    made = tools(Command.PAUSE, "--driver=beta", served=(DRIVERLESS, "alpha"))
    made.kube.list = lambda *_, **__: []
    assert pause.queue_names_of(made, "beta") == ["beta"]
    said = "note: no worker serves driver beta now (drivers served now: alpha)\n"
    assert capsys.readouterr().out == said


def test_explain_names_what_is_served():
    cause = queueing.unserved("beta", Served(PROVISIONER, (DRIVERLESS, "alpha")), workers=1)
    assert "Drivers served now: alpha." in cause.advice


@pytest.mark.parametrize(
    ("function", "command", "words"),
    [
        (failed.run, Command.FAILED, ()),
        (failed.run, Command.FAILED, ("-o=json",)),
        (status.run, Command.STATUS, ()),
        (status.run, Command.STATUS, ("-o=json",)),
        (pending.run, Command.PENDING, ()),
        (pending.run, Command.PENDING, ("-o=json",)),
        (pause.run, Command.PAUSE, ()),
        (shadow.run, Command.SHADOW, ("report",)),
    ],
)
def test_a_driver_that_nobody_knows_is_a_mistake(tools, function, command, words, capsys):
    with pytest.raises(ConfigError) as caught:
        function(tools(command, *words, "--driver=alpa"))
    assert capsys.readouterr().out == ""
    assert caught.value.exit_code == 1
    assert str(caught.value) == (
        'driver "alpa" is unknown: no worker serves it, and no storage class names it '
        '(served: alpha). Did you mean "alpha"?'
    )


def test_a_known_driver_without_failures_is_well(tools, capsys):
    assert failed.run(tools(Command.FAILED, "--driver=alpha")) == 0
    assert capsys.readouterr().out == "no object of driver alpha is failing\n"


@pytest.mark.parametrize(
    ("flags", "state", "said"),
    [
        (("--driver=alpha",), "ok", "the driver's workers run provisioner"),
        (("--driver=alpha", "--controllers=attacher"), "FAIL", "but not attacher"),
        (("--driver=alpa",), "FAIL", 'no worker serves it. Did you mean "alpha"?'),
    ],
)
def test_doctor_fails_for_a_driver_that_is_not_served(tools, redis_client, flags, state, said):
    made = tools(Command.DOCTOR, *flags)
    record = {"name": "alpha", "controllers": ["provisioner"]}
    DriverRegistry(redis_client).register("alpha", record, ttl_seconds=60)
    name = flags[0].partition("=")[2]
    (found,) = (one for one in doctor.system(made) if one.check == f"driver {name}")
    assert found.state == state
    assert said in found.text


@pytest.mark.parametrize(
    ("verdicts", "code"), [((), 1), (("agrees",), 0), (("agrees", "differs"), 1)]
)
def test_shadow_report_opens_for_what_agrees_alone(tools, redis_client, capsys, verdicts, code):
    """If nothing was compared, there is no agreement."""
    for verdict in verdicts:
        Shadows(redis_client).tell("alpha", f"/{verdict}", verdict, None)
    assert shadow.run(tools(Command.SHADOW, "report")) == code
    assert ("!" in capsys.readouterr().out) == bool(code)
