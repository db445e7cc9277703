"""Runs one component under test as a process group, which can be stopped and restarted."""

import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

UP_SECONDS = 20


class Component:
    def __init__(self, name, flags, env, values, commands, log):
        self.name, self.process = name, None
        self.ended = False  # by the runner, so that its exit code means nothing
        line = commands.get(name) or commands["*"]
        values = {
            **values,
            "component": name,
            "flags": " ".join(f"--{k}={shlex.quote(str(v))}" for k, v in flags.items()),
        }
        for key, value in values.items():
            line = line.replace("{" + key + "}", value)
        self.line, self.env = shlex.split(line), dict(os.environ, **env)
        self.work, self.home = values["work"], None
        self.log = Path(log).open("w")  # noqa: SIM115 - closed by `close`

    def start(self):
        # The process gets a new folder for its files, because the old ones are about the previous
        # process.
        self.home = Path(tempfile.mkdtemp(dir=self.work))
        self.process = subprocess.Popen(
            self.line,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env={**self.env, "TMPDIR": str(self.home)},
            start_new_session=True,
        )
        self.ended = False

    def wait_up(self, parts):
        """Wait until each part has made its file, the process has exited, or time is up."""
        end = time.monotonic() + UP_SECONDS
        while self.exit_code() is None and time.monotonic() < end:
            if all(any(self.home.glob(f"*/{part}/*.ready")) for part in parts):
                return
            time.sleep(0.05)

    def stop(self, first=signal.SIGTERM):
        if self.exit_code() is not None or self.process is None:
            return
        self.ended = True
        os.killpg(self.process.pid, first)  # the group that this class started
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def exit_code(self):
        return self.process.poll() if self.process else None

    def close(self):
        self.stop()
        self.log.close()
