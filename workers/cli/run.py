"""`csi-fleet run`: the whole system as one foreground program.

A supervisor without logic of its own: Redis (embedded unless --redis-url), watcher, workers
and beat as child processes. A part that fails while starting ends the program with that part's
exit code (F-014); a part that dies later is started again with back-off, the embedded Redis too
(empty: everything comes back from the objects). SIGTERM stops all of it cleanly.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, NoReturn

from workers.cli import embedded_redis, forking, statefolder
from workers.cli.processes import RESTART_BASE_SECONDS, Child, stop_all
from workers.config.flags import Command
from workers.config.flagsets import flag_set
from workers.config.load import controllers_of
from workers.controllers import catalogue
from workers.errors import ConfigError
from workers.observability.logging import get_logger

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

    from workers.config.settings import Settings
    from workers.observability.exposition import SharedMetrics
    from workers.observability.http import DiagnosticsServer

_log = get_logger(__name__)

TICK_SECONDS: Final = 0.05
# How often the embedded Redis is asked whether it lives, and how many questions in a row it may
# leave open: 30 s. Counted, because time goes on while this process is stopped together with it.
ASK_SECONDS: Final = 5.0
MOST_UNANSWERED: Final = 6
# Flags of the endpoint; `run` serves it itself, for its parts cannot share a port.
SERVER_FLAGS: Final = frozenset(
    {"http-endpoint", "metrics-address", "metrics-path", "enable-pprof"}
)
GRACE_SECONDS: Final = 20.0
# As workers.process has it, without loading it.
LIVE_FILE: Final = "live"
# As workers.queue.fellows has it, without loading it.
INSTALLATION_VARIABLE: Final = "CSI_FLEET_INSTALLATION"
BROKER_VARIABLE: Final = "CSI_FLEET_REDIS_BROKER_USERNAME"
# As workers.observability.exposition has it, without loading it.
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def arguments_for(command: Command, argv: Sequence[str]) -> list[str]:
    """The given flags that a part accepts too; flags of other parts are left out.

    Works on the spelling the user gave, so values are never parsed twice. Both `--f=v` and `--f v`
    are handled; booleans take `=` only, as in Go.
    """
    flags = flag_set(catalogue.choose(controllers_of(argv, os.environ)))
    kept: list[str] = []
    takes_value = False
    is_kept = False
    for argument in argv:
        if takes_value:
            takes_value = False
            if is_kept:
                kept.append(argument)
            continue
        name, has_value, _ = argument.lstrip("-").partition("=")
        flag = flags.find(name)
        is_kept = flag is None or (command in flag.commands and name not in SERVER_FLAGS)
        is_bool = flag is None or flag.kind.value == "bool"
        takes_value = not has_value and not is_bool
        if is_kept and flag is not None:
            kept.append(argument)
    return kept


class Supervisor:
    """The parts of one run."""

    def __init__(self, settings: Settings, argv: Sequence[str], directory: Path) -> None:
        self.settings = settings
        self.argv = list(argv)
        self.directory = directory
        self.children: list[Child] = []
        self.redis: subprocess.Popen[bytes] | None = None
        self.redis_next = 0.0
        self.redis_ask_at = 0.0
        self.redis_unanswered = 0
        self.stopping = False
        self.metrics: SharedMetrics | None = None
        self.http: DiagnosticsServer | None = None

    def start(self) -> None:
        """Starts Redis and the parts; returns at once."""
        url = self.settings.redis.url_with_credentials()
        if not url:
            self.redis, url = embedded_redis.start(self.directory)
        env = {"CSI_FLEET_REDIS_URL": url}
        if self.redis is not None:
            env[INSTALLATION_VARIABLE] = embedded_redis.name_of(self.directory)
        # Of the flag and the variable the one that holds; the parts would take the variable.
        env["KUBECONFIG"] = self.settings.kube.kubeconfig
        if self.settings.http.endpoint:
            env[MULTIPROCESS_VARIABLE] = self.serve(url)
        # Beat keeps its schedule in Redis, and the watcher deletes there what nobody reads, both by
        # the connection that sends their messages.
        with_broker = env | ({BROKER_VARIABLE: embedded_redis.BROKER} if self.redis else {})
        self.add("watcher", Command.WATCHER, ["watcher"], env)
        for index in range(self.settings.process.workers):
            self.add(f"worker-{index}", Command.WORKER, ["workers", "worker"], with_broker)
        watcher, *workers = self.children
        # Redis and imports take their time side by side.
        # The watcher lists the cluster while what only workers need is imported.
        self.preload(forking.WATCHER)
        if self.redis is not None:
            embedded_redis.wait_ready(self.redis, self.directory)
        self.begin(watcher)
        self.preload(*forking.WORKERS)
        for child in workers:
            self.begin(child)
        self.add("beat", Command.BEAT, ["workers", "beat"], env)

    def preload(self, *names: str) -> None:
        """Imports for the parts that will be forked; none are while this process serves HTTP."""
        if self.http is None:
            forking.preload(*names)

    def begin(self, child: Child) -> None:
        """First starts are forks of what is imported already, later ones new interpreters."""
        if self.http is None and not child.failures and forking.is_possible():
            child.fork()
        else:
            child.start()

    def serve(self, redis_url: str) -> str:
        """Starts the endpoint; returns the folder the parts export through."""
        from workers.cli import diagnostics  # noqa: PLC0415 - without it the supervisor stays small

        self.metrics = diagnostics.shared_metrics(self.directory)
        self.http = diagnostics.serve_run(
            self.settings, self.metrics, redis_url, live=self.check_live, ready=self.check_ready
        )
        return str(self.metrics.directory)

    def check_live(self) -> str:
        """What hangs in a part. One that died or hangs is started again by us."""
        complaints = {child.name: child.hangs() for child in self.children}
        return "; ".join(f"{name}: {text}" for name, text in complaints.items() if text)

    def check_ready(self) -> str:
        """Says which parts are not at work."""
        names = [child.name for child in self.children if not child.ready]
        if self.redis is not None and (self.redis_unanswered > 1 or self.redis.poll() is not None):
            names.append("redis")
        return f"waiting for {', '.join(names)}" if names else ""

    def add(self, name: str, command: Command, module: list[str], env: dict[str, str]) -> None:
        """Plans one part with a state directory of its own."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        flags = arguments_for(command, self.argv)
        state = [f"--state-dir={directory}"]
        live = directory / LIVE_FILE
        # What a run before this one left here says nothing about this one.
        for old in (live, *directory.glob("*.ready")):
            old.unlink(missing_ok=True)
        self.children.append(Child(name, [*module, *flags, *state], env, live=live))

    def watch(self) -> int:
        """Keeps the parts running until a signal; returns the exit code."""
        while not self.stopping:
            self.keep_redis()
            for child in self.children:
                code = self.look_after(child)
                if code is not None:
                    return code
            time.sleep(TICK_SECONDS)
        return 0

    def keep_redis(self) -> None:
        """Starts the embedded Redis again if it has ended, at most once a second, or hangs."""
        if self.redis is None:
            return
        if self.redis.poll() is None:
            self.ask_redis(self.redis)
            return
        if time.monotonic() < self.redis_next:
            return
        self.redis_next = time.monotonic() + RESTART_BASE_SECONDS
        self.redis_ask_at, self.redis_unanswered = time.monotonic() + ASK_SECONDS, 0
        try:
            log = embedded_redis.log_text(self.directory)[-1000:]
            code = self.redis.returncode
            _log.warning("ended, starting it again", process="redis", code=code, err=log)
            self.redis, _ = embedded_redis.start(self.directory)
        except (OSError, ConfigError) as error:  # what ended it may last for a while
            _log.warning("not started, trying again", process="redis", err=error)

    def ask_redis(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the embedded Redis when it has been silent for too long; takes a second at most."""
        if time.monotonic() < self.redis_ask_at:
            return
        self.redis_ask_at = time.monotonic() + ASK_SECONDS
        is_alive = embedded_redis.reply(self.directory / embedded_redis.SOCKET)
        self.redis_unanswered = 0 if is_alive else self.redis_unanswered + 1
        if self.redis_unanswered == MOST_UNANSWERED:
            seconds = MOST_UNANSWERED * ASK_SECONDS
            _log.error("hangs and is started again", process="redis", silent_seconds=seconds)
            process.kill()  # what cannot die now, in a freezer say, is not waited for

    def look_after(self, child: Child) -> int | None:
        """Starts, restarts or gives up one part; a code ends the whole program."""
        if child.process is None:
            if time.monotonic() >= child.next_start and self.may_start(child):
                self.begin(child)
            return None
        if not child.ready and self.is_ready(child):
            child.ready = True
        code = child.exit_code()
        if code is None and (complaint := child.hangs()):
            # It can't end in order; its leases run out, and others take over.
            _log.error("hangs and is started again", process=child.name, err=complaint)
            child.kill()
            code = child.exit_code()
        if code is None:
            return None
        if not child.ready and not self.stopping:
            return code or 1
        if self.metrics is not None and child.process is not None:
            self.metrics.forget_process(child.process.pid)
        delay = child.schedule_restart()
        _log.warning("ended, starting it again", process=child.name, code=code, seconds=delay)
        return None

    def may_start(self, child: Child) -> bool:
        """Beat waits until the workers are up: their start is what a user waits for."""
        if child.name != "beat":
            return True
        return all(other.ready for other in self.children if other is not child)

    def is_ready(self, child: Child) -> bool:
        """True once the part has written its ready file; beat and watcher write theirs too."""
        directory = self.directory / child.name
        return any(directory.glob("*.ready"))

    def stop(self) -> None:
        """Parts first, Redis last, so that every lease can be handed back."""
        self.stopping = True
        stop_all(self.children, grace_seconds=GRACE_SECONDS)
        if self.http is not None:
            self.http.stop()
        if self.redis is not None:
            embedded_redis.stop(self.redis, self.directory)


def run(settings: Settings, argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    folder = statefolder.take(settings)
    _log.info("files and Redis of this run", folder=str(folder.path))
    supervisor = Supervisor(settings, argv, folder.path)

    def on_signal(signum: int, frame: object) -> None:
        del signum, frame
        supervisor.stopping = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        supervisor.start()
        return supervisor.watch()
    finally:
        supervisor.stop()
        folder.close()


def replace_by_module(module: str, argv: Sequence[str]) -> NoReturn:
    """Becomes `python -m module`: the same process id, so that signals arrive."""
    os.execv(sys.executable, [sys.executable, "-m", module, *argv])  # noqa: S606 - our own module
