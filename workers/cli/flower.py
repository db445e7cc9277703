"""`csi-fleet flower`: Flower on our broker, read-only, with bounded memory and a login."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from workers.app import make_app

if TYPE_CHECKING:
    from workers.config import Settings


def arguments(settings: Settings) -> list[str]:
    """Flower's own options (pitfalls of Flower: memory, pickles, logins, stale workers)."""
    flower = settings.flower
    found = [
        f"--address={flower.address}",
        f"--port={flower.port}",
        "--max_tasks=10000",
        "--persistent=False",
        "--purge_offline_workers=300",
        "--read_only=True",
        "--tasks_columns=name,args,state,received,started,runtime,worker,exception",
    ]
    if flower.basic_auth:
        found.append(f"--basic_auth={','.join(flower.basic_auth)}")
    return found


def run(settings: Settings) -> NoReturn:
    """The command; ends the process."""
    app = make_app(settings)
    app.set_default()
    app.start(["--quiet", "flower", *arguments(settings)])
