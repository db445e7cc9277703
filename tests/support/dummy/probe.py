"""Runs with the echo controller in the catalogue, and prints what was derived from it as JSON.

It is a process of its own, because the catalogue is read when modules are imported. The two lines
before the others are what a new controller needs outside its folder: here its import path; in the
repository, the folder itself and its line in the catalogue.
"""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import workers.controllers

sys.modules["workers.controllers.echo"] = __import__("tests.support.dummy.echo", fromlist=["echo"])
sys.modules["workers.controllers.echo.controller"] = __import__(
    "tests.support.dummy.echo.controller", fromlist=["controller"]
)
assert workers.controllers.__doc__

from tests.support.dummy.echo.spec import SPEC  # noqa: E402
from workers.controllers import catalogue  # noqa: E402

catalogue.SPECS = (*catalogue.SPECS, SPEC)  # type: ignore[misc] # the line in the catalogue


def without_rights(settings: Any) -> Any:
    """Return the tools that `doctor` uses, with an API server that allows nothing."""
    from types import SimpleNamespace  # noqa: PLC0415

    client = SimpleNamespace(create=lambda *_: {"status": {"allowed": False}})
    return SimpleNamespace(settings=settings, kube=SimpleNamespace(client=client))


def main() -> None:
    """Print everything that is derived from the specs."""
    from dataclasses import asdict  # noqa: PLC0415
    from types import SimpleNamespace  # noqa: PLC0415

    from workers.__main__ import drop_in  # noqa: PLC0415
    from workers.app import make_app  # noqa: PLC0415
    from workers.cli import completion, doctor  # noqa: PLC0415
    from workers.config.flagdocs import flags_markdown  # noqa: PLC0415
    from workers.config.flags import Command  # noqa: PLC0415
    from workers.config.load import parse  # noqa: PLC0415
    from workers.drivers.announcing import Announcing  # noqa: PLC0415
    from workers.drivers.driversfile import DriverSpec  # noqa: PLC0415
    from workers.engine.controller import load  # noqa: PLC0415
    from workers.explain import nouns  # noqa: PLC0415
    from workers.queue import kinds  # noqa: PLC0415
    from workers.queue.scripts import library  # noqa: PLC0415
    from workers.tasks.registry import register  # noqa: PLC0415

    settings = parse("run", ["--controllers=echo", "--loudness=9"], {})
    controller = load("echo")
    lanes: dict[str, int] = {}
    queue = SimpleNamespace(set_limits=lambda lane, number, **_: lanes.update({lane: number}))
    driver = SimpleNamespace(
        queue_name="d", name="d", record=lambda: {"name": "d", "queue_name": "d"}
    )
    announcing = Announcing(settings, [controller])
    announcing.set_limits(driver, DriverSpec("", ""), queue)  # type: ignore[arg-type]
    app = make_app(settings)
    register(app, cast("Any", None), {}, cast("Any", None))
    print(
        json.dumps(
            {
                "settings": asdict(settings.controllers["echo"]),
                "chosen": settings.chosen,
                "command": drop_in(["csi-echo", "--loudness=1"]),
                "lanes": lanes,
                "record": announcing.record(driver),  # type: ignore[arg-type]
                "record_at": announcing.place("d"),
                "places": sorted(kinds.places("d", [SPEC]) | kinds.places("", [SPEC])),
                "tasks": sorted(app.tasks),
                "work_queue": catalogue.work_queues()["echoes"],
                "operation": catalogue.lanes()["list-snapshots"],
                "lua": library()[1].splitlines()[:8],
                "noun": nouns.nouns()["echo"].example,
                "words": completion.objects(Command.EXPLAIN).split(),
                "docs": [line for line in flags_markdown().splitlines() if "echo" in line],
                "row": [line for line in flags_markdown().splitlines() if "loudness" in line],
                "permissions": [one.text for one in doctor.rights(without_rights(settings))],
                "lease": catalogue.specs(["echo"])[0].lease_name("d"),  # type: ignore[misc]
            }
        )
    )


if __name__ == "__main__":
    main()
