"""`csi-fleet run`: the whole system as one foreground program.

It is a supervisor without logic of its own. It runs Redis (embedded unless --redis-url is given),
watcher, workers and beat as child processes. If a part fails during startup, the program ends with
that part's exit code (F-014). A part that dies later is restarted with back-off. So is the embedded
Redis, which then starts empty: its content is rebuilt from the API server's objects. SIGTERM stops
all parts cleanly.
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
# How often the embedded Redis is pinged, and how many pings in a row it may miss: 30 s in total.
# Pings are counted, because time also passes while this process and Redis are stopped together.
ASK_SECONDS: Final = 5.0
MOST_UNANSWERED: Final = 6
# Flags of the HTTP endpoint, which `run` serves itself because its parts cannot share a port.
SERVER_FLAGS: Final = frozenset(
    {"http-endpoint", "metrics-address", "metrics-path", "enable-pprof"}
)
GRACE_SECONDS: Final = 20.0
# Copied from workers.process, to avoid importing that module.
LIVE_FILE: Final = "live"
# Copied from workers.queue.fellows, to avoid importing that module.
INSTALLATION_VARIABLE: Final = "CSI_FLEET_INSTALLATION"
BROKER_VARIABLE: Final = "CSI_FLEET_REDIS_BROKER_USERNAME"
# Copied from workers.observability.exposition, to avoid importing that module.
MULTIPROCESS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def arguments_for(command: Command, argv: Sequence[str]) -> list[str]:
    """Return the given flags that a part accepts, without the flags of other parts.

    The user's spelling is kept, so values are not parsed twice. Both `--f=v` and `--f v` are
    handled; booleans accept only `=`, as in Go.
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
    """Starts the parts of one run and keeps them running."""

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
        """Start Redis and the parts; return without waiting for the parts."""
        url = self.settings.redis.url_with_credentials()
        if not url:
            self.redis, url = embedded_redis.start(self.directory)
        env = {"CSI_FLEET_REDIS_URL": url}
        if self.redis is not None:
            env[INSTALLATION_VARIABLE] = embedded_redis.name_of(self.directory)
        # Set the effective value; otherwise the parts would use the environment variable instead of
        # the flag.
        env["KUBECONFIG"] = self.settings.kube.kubeconfig
        if self.settings.http.endpoint:
            env[MULTIPROCESS_VARIABLE] = self.serve(url)
        # Beat keeps its schedule in Redis, and the watcher deletes unread replies from Redis. Both
        # use the connection that sends their messages, so that connection cannot have the
        # restricted user of the workers' broker connections.
        with_broker = env | ({BROKER_VARIABLE: embedded_redis.BROKER} if self.redis else {})
        self.add("watcher", Command.WATCHER, ["watcher"], env)
        for index in range(self.settings.process.workers):
            self.add(f"worker-{index}", Command.WORKER, ["workers", "worker"], with_broker)
        watcher, *workers = self.children
        # Redis starts while modules are being imported. The watcher lists the cluster while the
        # modules that only workers need are being imported.
        self.preload(forking.WATCHER)
        if self.redis is not None:
            embedded_redis.wait_ready(self.redis, self.directory)
        self.begin(watcher)
        self.preload(*forking.WORKERS)
        for child in workers:
            self.begin(child)
        self.add("beat", Command.BEAT, ["workers", "beat"], env)

    def preload(self, *names: str) -> None:
        """Import modules for the parts to be forked, unless this process serves HTTP."""
        if self.http is None:
            forking.preload(*names)

    def begin(self, child: Child) -> None:
        """Start a part for the first time, by forking if possible; a restart never forks."""
        if self.http is None and not child.failures and forking.is_possible():
            child.fork()
        else:
            child.start()

    def serve(self, redis_url: str) -> str:
        """Start the HTTP endpoint; return the folder through which the parts export metrics."""
        from workers.cli import diagnostics  # noqa: PLC0415 - without it the supervisor stays small

        self.metrics = diagnostics.shared_metrics(self.directory)
        self.http = diagnostics.serve_run(
            self.settings, self.metrics, redis_url, live=self.check_live, ready=self.check_ready
        )
        return str(self.metrics.directory)

    def check_live(self) -> str:
        """Return what is hanging in a part; the supervisor restarts hanging and dead parts."""
        complaints = {child.name: child.hangs() for child in self.children}
        return "; ".join(f"{name}: {text}" for name, text in complaints.items() if text)

    def check_ready(self) -> str:
        """Return which parts are not ready, or "" if all are."""
        names = [child.name for child in self.children if not child.ready]
        if self.redis is not None and (self.redis_unanswered > 1 or self.redis.poll() is not None):
            names.append("redis")
        return f"waiting for {', '.join(names)}" if names else ""

    def add(self, name: str, command: Command, module: list[str], env: dict[str, str]) -> None:
        """Add a part with its own state directory; the part is started later."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        flags = arguments_for(command, self.argv)
        state = [f"--state-dir={directory}"]
        live = directory / LIVE_FILE
        # Files of an earlier run in this folder do not describe this run.
        for old in (live, *directory.glob("*.ready")):
            old.unlink(missing_ok=True)
        self.children.append(Child(name, [*module, *flags, *state], env, live=live))

    def watch(self) -> int:
        """Keep the parts running until a signal arrives; return the exit code."""
        while not self.stopping:
            self.keep_redis()
            for child in self.children:
                code = self.look_after(child)
                if code is not None:
                    return code
            time.sleep(TICK_SECONDS)
        return 0

    def keep_redis(self) -> None:
        """Restart the embedded Redis if it has ended (at most once a second) or is hanging."""
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
            _log.warning("the process ended; restarting it", process="redis", code=code, err=log)
            self.redis, _ = embedded_redis.start(self.directory)
        except (OSError, ConfigError) as error:  # what ended it may persist for a while
            _log.warning("could not start the process; retrying", process="redis", err=error)

    def ask_redis(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the embedded Redis after too many missed pings; this takes at most a second."""
        if time.monotonic() < self.redis_ask_at:
            return
        self.redis_ask_at = time.monotonic() + ASK_SECONDS
        is_alive = embedded_redis.reply(self.directory / embedded_redis.SOCKET)
        self.redis_unanswered = 0 if is_alive else self.redis_unanswered + 1
        if self.redis_unanswered == MOST_UNANSWERED:
            seconds = MOST_UNANSWERED * ASK_SECONDS
            _log.error("the process hangs; restarting it", process="redis", silent_seconds=seconds)
            process.kill()  # do not wait: a frozen process cannot die now

    def look_after(self, child: Child) -> int | None:
        """Start or restart one part if it is due; return an exit code if the program must end."""
        if child.process is None:
            if time.monotonic() >= child.next_start and self.may_start(child):
                self.begin(child)
            return None
        if not child.ready and self.is_ready(child):
            child.ready = True
        code = child.exit_code()
        if code is None and (complaint := child.hangs()):
            # The part cannot shut down cleanly. Its leases expire, and other workers take over.
            _log.error("the process hangs; restarting it", process=child.name, err=complaint)
            child.kill()
            code = child.exit_code()
        if code is None:
            return None
        if not child.ready and not self.stopping:
            return code or 1
        if self.metrics is not None and child.process is not None:
            self.metrics.forget_process(child.process.pid)
        delay = child.schedule_restart()
        _log.warning(
            "the process ended; restarting it", process=child.name, code=code, seconds=delay
        )
        return None

    def may_start(self, child: Child) -> bool:
        """Return True if the part may start; beat starts last, because it is not urgent."""
        if child.name != "beat":
            return True
        return all(other.ready for other in self.children if other is not child)

    def is_ready(self, child: Child) -> bool:
        """Return True once the part has written its ready file."""
        directory = self.directory / child.name
        return any(directory.glob("*.ready"))

    def stop(self) -> None:
        """Stop the parts first and Redis last, so that every lease can be released."""
        self.stopping = True
        stop_all(self.children, grace_seconds=GRACE_SECONDS)
        if self.http is not None:
            self.http.stop()
        if self.redis is not None:
            embedded_redis.stop(self.redis, self.directory)


def run(settings: Settings, argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    folder = statefolder.take(settings)
    _log.info(
        "this run keeps its files and the socket of its Redis in this folder",
        folder=str(folder.path),
    )
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
    """Become `python -m module` with the same process id, so that signals reach it."""
    os.execv(sys.executable, [sys.executable, "-m", module, *argv])  # noqa: S606 - our own module
