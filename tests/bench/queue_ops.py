"""Measure the speed of the queue's scripts; prints a table and asserts nothing.

Run: python -m tests.bench.queue_ops [threads]
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.support.redis_server import RedisServer, find_redis_server
from workers.queue.connection import connect
from workers.queue.intents import IntentStore
from workers.queue.keys import Key, claim_key
from workers.queue.locks import Lock
from workers.queue.workqueue import WorkQueue

CYCLES = 4000
WAITING = 10_000
DRIVER = "csi.example.com"
INTENT = {"stage": "calling", "claim": {"metadata": {"name": "data", "uid": "u" * 36}}}


def make_key(number: int) -> Key:
    return claim_key(DRIVER, f"namespace-{number % 50}", f"data-database-{number}", f"{number:036}")


def measure(url: str, threads: int, *, has_intents: bool) -> float:
    """Return cycles per second of ADD, TAKE, ENTER, (intent, created,) DONE on `threads`."""
    client = connect(url)
    client.flushall()
    queue = WorkQueue(client, publish=lambda _: None)
    queue.register_process()
    queue.set_limits(make_key(0).lane, 64)
    store = IntentStore(client)
    queue.add(make_key(i) for i in range(CYCLES))

    def work() -> None:
        while True:
            lease = queue.take(DRIVER, ["claims"])
            if lease is None:
                return
            domain = f"pvc-{lease.key.uid}"
            assert queue.enter(lease, [Lock(domain)])
            if has_intents:
                store.begin(domain, INTENT, lease)
                store.created(domain, INTENT, INTENT)
            queue.done(lease, finish_intent=has_intents)

    pool = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    cpu = float(client.info("cpu")["used_cpu_user"]) + float(client.info("cpu")["used_cpu_sys"])
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    seconds = time.perf_counter() - start
    used = float(client.info("cpu")["used_cpu_user"]) + float(client.info("cpu")["used_cpu_sys"])
    print(
        f"threads={threads} intents={has_intents!s:5} {CYCLES / seconds:7.0f} cycles/s"
        f"  redis cpu {1e6 * (used - cpu) / CYCLES:5.0f} us/cycle"
    )
    client.close()
    return CYCLES / seconds


def weigh(url: str) -> None:
    """Print the bytes of Redis per waiting key, and the rate at which keys are added in batches."""
    client = connect(url)
    client.flushall()
    queue = WorkQueue(client, publish=lambda keys: None)
    before = client.info("memory")["used_memory"]
    start = time.perf_counter()
    queue.add(make_key(i) for i in range(WAITING))
    seconds = time.perf_counter() - start
    used = client.info("memory")["used_memory"] - before
    print(f"{used / WAITING:.0f} bytes per waiting key, {WAITING / seconds:.0f} adds/s in batches")
    client.close()


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    binary = find_redis_server()
    if binary is None:
        sys.exit("no redis-server found")
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(binary, Path(directory)).start()
        try:
            for count in (1, threads):
                measure(server.unix_url, count, has_intents=False)
                measure(server.unix_url, count, has_intents=True)
            weigh(server.unix_url)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
