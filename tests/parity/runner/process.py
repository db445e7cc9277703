"""One component under test as a process of its own group: started, ended, started again."""

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
        self.ended = False  # by us, so that its exit code means nothing
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
        # Where it makes its files; anew, since what it left there speaks of the one before.
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
        """Until each part of the command has made its file, or it ended, or waits for the case."""
        end = time.monotonic() + UP_SECONDS
        while self.exit_code() is None and time.monotonic() < end:
            if all(any(self.home.glob(f"*/{part}/*.ready")) for part in parts):
                return
            time.sleep(0.05)

    def stop(self, first=signal.SIGTERM):
        if self.exit_code() is not None or self.process is None:
            return
        self.ended = True
        os.killpg(self.process.pid, first)  # the group we started ourselves
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
