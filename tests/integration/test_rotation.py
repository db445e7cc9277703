"""Passwords, certificates and the CA of Redis change while work continues, and no work fails.

Redis runs as shipped. The queue uses the worker's login for its own client, its heartbeat and
Celery.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import suppress

import pytest

from tests.support.secure_redis import ROOT, SecureRedis
from tests.support.waiting import wait_until
from workers.app import make_app, publisher
from workers.config.flags import Command
from workers.config.load import parse
from workers.errors import QueueUnavailable
from workers.queue.connection import connect, connect_heartbeat, redis_errors
from workers.queue.keys import claim_key
from workers.queue.leases import Heartbeat
from workers.queue.names import celery_queue
from workers.queue.seal import Seal
from workers.queue.workqueue import WorkQueue

# After this number of claims, all waiting claims are added again.
RESYNC = 25


@pytest.fixture
def server(redis_binary, tmp_path):
    server = SecureRedis(redis_binary, tmp_path).start()
    yield server
    server.stop()


class Load:
    """Adds claims and works on them without a pause, as the watcher and a worker do."""

    def __init__(self, settings):
        redis = settings.redis
        url, file = redis.url_with_credentials(), redis.password_file
        self.client = connect(url, password_file=file)
        self.app = make_app(settings)
        self.beating = connect_heartbeat(url, password_file=file)
        self.queue = WorkQueue(
            self.client,
            publish=publisher(self.app),
            heartbeat_client=self.beating,
            seal=Seal.of_lines(redis.record_keys),
        )
        self.waiting = set()
        self.added = self.done = 0
        self.heartbeat = Heartbeat(self.queue)
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=one) for one in (self.add, self.work)]

    def __enter__(self):
        self.queue.register_process()
        self.queue.set_limits("claims|d", 5)
        self.heartbeat.start()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        self.heartbeat.stop()
        self.client.close()
        self.beating.close()
        self.app.close()

    def add(self):
        """Add claims as the watcher does: its outbox and its resync add lost claims again."""
        while not self.stopped.wait(0.02) or self.waiting:
            if not self.stopped.is_set():
                self.waiting.add(key_of(self.added))
                self.added += 1
            with suppress(QueueUnavailable):
                self.queue.add([key_of(self.added - 1)])
                if self.added % RESYNC == 0 or self.stopped.is_set():
                    self.queue.add(self.waiting.copy())

    def work(self):
        while not self.stopped.is_set() or self.waiting:
            # The messages in Celery's list are removed, as by a worker that reads them.
            with suppress(QueueUnavailable), redis_errors():
                self.queue.pump(period_seconds=0)
                self.client.delete(celery_queue("d"))
            with suppress(QueueUnavailable):
                lease = self.queue.take("d", ["claims"], is_woken=True)
                if lease and self.queue.enter(lease, ()) and self.queue.done(lease):
                    self.done += 1
                    self.waiting.discard(lease.key)

    def goes_on(self, what):
        """Wait until twenty more claims are done."""
        target = self.done + 20
        wait_until(lambda: self.done >= target, 120, f"work goes on after {what}")


def key_of(number):
    return claim_key("d", "ns", f"claim-{number}", f"u{number}")


def settings_of(server):
    return parse(Command.WORKER, ["--csi-address=/none", *server.login("worker")], {})


def connections(server):
    with server.client("tester") as client:
        return {one["id"] for one in client.client_list() if one["user"] == "worker"}


def test_a_password_changes_while_redis_takes_both(server):
    """Redis accepts both passwords of a user's file, while clients use the first line."""
    file, old = server.secrets / "worker", server.password("worker")
    with Load(settings_of(server)) as load, server.client("tester") as admin:
        load.goes_on("the start")
        admin.acl_setuser("worker", enabled=True, passwords=["+new"])
        file.write_text(f"new\n{old}\n")
        before = connections(server)
        admin.acl_setuser("worker", enabled=True, passwords=[f"-{old}"])
        for one in before:
            admin.client_kill_filter(_id=one)
        load.goes_on("a new password")
        assert not connections(server) & before
    assert load.done >= load.added > 0


def test_redis_starts_anew_with_another_password_and_authority(server):
    """A restart of Redis with another password and CA needs no change of clients: the next
    connection reads both files again.

    The signing key stays.
    """
    with Load(settings_of(server)) as load:
        load.goes_on("the start")
        for name in ("worker", "ca.crt", "ca.key", "tls.crt", "tls.key"):
            (server.secrets / name).unlink(missing_ok=True)
        fresh = server.directory / "fresh"
        shutil.copytree(server.secrets, fresh)
        subprocess.run(["sh", ROOT / "k8s/make-secrets.sh", fresh], check=True)
        shutil.copytree(fresh, server.secrets, dirs_exist_ok=True)
        server.stop()
        server.serve()
        load.goes_on("a new authority")
    assert load.done >= load.added > 0


def test_every_line_of_a_password_file_is_taken_by_redis(server):
    """prepare.sh gives Redis every password of a file, so
    servers and clients need not change at the same moment.
    """
    (server.secrets / "worker").write_text("one\ntwo\n")
    server.stop()
    server.serve()
    for password in ("one", "two"):
        assert connect(server.url.replace("://", f"://worker:{password}@")).ping()
