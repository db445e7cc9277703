"""Measure how long other tenants' claims wait while one tenant fills Redis with failing claims.

    python -m tests.bench.full_namespace [CLAIMS]

The run uses a real Redis with the shipped memory limit, the real queue and records, 32 threads as
in a worker, and a driver that takes 10 ms. The greedy tenant's claims have 264 KB of annotations
and fail. The same number of small failing claims shows the effect of the size.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

from tests.support.redis_server import RedisServer, find_redis_server
from workers.controllers.provisioner.intent import Intent, Request
from workers.errors import NamespaceFull, QueueUnavailable
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key
from workers.queue.leases import Heartbeat, Lease, Session
from workers.queue.locks import Lock
from workers.queue.seal import Seal
from workers.queue.workqueue import WorkQueue

THREADS, OTHERS, CALL_SECONDS = 32, 300, 0.01
SEAL = Seal.of_lines(["k" * 64])
FILLING = {f"team/{number}": "x" * 250 for number in range(1000)}


class Bench:
    """A worker with simulated passes."""

    def __init__(self, server: RedisServer) -> None:
        self.client = connect(server.unix_url)
        self.messages: Queue[str] = Queue()
        self.queue = WorkQueue(self.client, publish=self.publish, seal=SEAL)
        self.intents = IntentStore(self.client, SEAL)
        self.ends: dict[str, float] = {}
        self.failed: set[Key] = set()
        self.full = 0
        self.stopped = threading.Event()
        self.heartbeat = Heartbeat(self.queue)
        self.threads = [threading.Thread(target=self.work) for _ in range(THREADS)]
        self.threads.append(threading.Thread(target=self.pump))

    def __enter__(self) -> Self:
        self.client.config_set("maxmemory", "350mb")
        self.queue.register_process()
        self.queue.set_limits("claims|d", THREADS)
        self.heartbeat.start()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        self.heartbeat.stop()

    def publish(self, lists: Iterable[str]) -> None:
        """Deliver wake-ups instead of Celery."""
        for name in lists:
            self.messages.put(name)

    def pump(self) -> None:
        """Run the queue's pump, as one thread of each process does."""
        seconds = 0.0
        while not self.stopped.wait(seconds):
            with suppress(QueueUnavailable):
                seconds = self.queue.pump()

    def work(self) -> None:
        """Run passes until the end."""
        while not self.stopped.is_set():
            with suppress(QueueUnavailable, Empty):
                self.messages.get(timeout=0.2)
                is_woken = True
                while (lease := self.queue.take("d", ["claims"], is_woken=is_woken)) is not None:
                    is_woken = False
                    assert self.queue.enter(lease, [Lock(f"pvc-{lease.key.uid}")])
                    self.one_pass(lease)

    def one_pass(self, lease: Lease) -> None:
        """Run one pass like the provisioner: record the intent, call, then finish or fail."""
        key = lease.key
        is_greedy = key.tenant == "greedy"
        record = intent(key, FILLING if key.uid.startswith("large") else {})
        try:
            self.intents.begin(lease.domain, record, lease)
            time.sleep(CALL_SECONDS)
        except NamespaceFull:
            self.full += 1
        if is_greedy:
            self.failed.add(key)
            self.queue.fail(lease, base_seconds=1, cap_seconds=300)
        else:
            self.queue.done(lease, finish_intent=True)
            self.ends[key.uid] = time.monotonic()

    def wait_for_all(self, keys: list[Key]) -> None:
        """Wait until each key has failed once: Redis is then full, and all keys retry."""
        while not self.failed.issuperset(keys):
            time.sleep(0.01)

    def settle(self) -> None:
        """Forget the keys repeatedly, because passes under way add their keys once more."""
        for _ in range(3):
            time.sleep(1)
            self.queue.forget(list(self.failed))

    def others(self, prefix: str) -> list[float]:
        """Add claims of ten quiet tenants every 20 ms; return the sorted seconds to each end."""
        starts = {}
        for number in range(OTHERS):
            key = claim_key("d", f"quiet-{number % 10}", f"c{number}", f"{prefix}{number}")
            starts[key.uid] = time.monotonic()
            self.queue.add([key])
            time.sleep(0.02)
        while not all(uid in self.ends for uid in starts):
            time.sleep(0.01)
        return sorted(self.ends[uid] - start for uid, start in starts.items())


def intent(key: Key, annotations: dict[str, str]) -> dict[str, Any]:
    """Return the intent record of a claim."""
    namespace, _, name = key.object.partition("/")
    metadata = {"namespace": namespace, "name": name, "uid": key.uid, "annotations": annotations}
    return Intent.begin(
        key=key.text,
        driver="d",
        claim={"metadata": metadata, "spec": {}},
        storage_class={"metadata": {"name": "fast"}},
        request=Request(),
        previous=None,
        session=Session(),
    ).record()


def shown(name: str, found: list[float], bench: Bench) -> None:
    """Print one line of the table."""
    p50, p99 = statistics.median(found), found[int(len(found) * 0.99) - 1]
    used = bench.client.info("memory")["used_memory_human"]  # type: ignore[index]
    print(f"| {name} | {p50 * 1000:.0f} ms | {p99 * 1000:.0f} ms | {used} | {bench.full} |")


def main() -> None:
    """Measure alone, next to the greedy tenant, and after its claims are deleted."""
    claims = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    binary = find_redis_server()
    assert binary is not None, "no redis-server"
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(binary, Path(folder)).start()
        try:
            with Bench(server) as bench:
                print("| others | p50 | p99 | Redis | refused |\n|---|---|---|---|---|")
                shown("alone", bench.others("a"), bench)
                for size in ("small", "large"):
                    uids = [f"{size}{number}" for number in range(claims)]
                    greedy = [claim_key("d", "greedy", uid, uid) for uid in uids]
                    bench.queue.add(greedy)
                    shown(f"while {claims} {size} ones come", bench.others(size[0]), bench)
                    bench.wait_for_all(greedy)
                    shown("beside all of them", bench.others(f"later {size}"), bench)
                    for key in greedy:
                        bench.intents.of(key.driver).finish(f"pvc-{key.uid}")
                        bench.queue.forget([key])
                    bench.settle()
                    shown("after their deletion", bench.others(f"after {size}"), bench)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
