"""Events of the API server are counted and passed on to their receiver."""

from __future__ import annotations

from watcher.counting import CountingSink
from workers.observability.metrics import Metrics


class Receiver:
    """A receiver that records each call."""

    def __init__(self):
        self.told = []

    def begin_list(self):
        self.told.append("begin")

    def listed(self, item):
        self.told.append(f"listed {item}")

    def end_list(self, resource_version):
        self.told.append(f"end {resource_version}")

    def changed(self, item):
        self.told.append(f"changed {item}")

    def deleted(self, item):
        self.told.append(f"deleted {item}")


def test_everything_is_passed_on_and_objects_are_counted_by_type():
    metrics, receiver = Metrics(), Receiver()
    sink = CountingSink(receiver, metrics.watch_events, "claims")
    sink.begin_list()
    for name in ("a", "b"):
        sink.listed(name)
    sink.end_list("9")
    sink.changed("c")
    sink.deleted("d")
    assert receiver.told == ["begin", "listed a", "listed b", "end 9", "changed c", "deleted d"]
    value = metrics.registry.get_sample_value
    labels = {"resource": "claims"}
    counts = {
        what: value("csi_fleet_watch_events_total", labels | {"type": what})
        for what in ("listed", "changed", "deleted")
    }
    assert counts == {"listed": 2, "changed": 1, "deleted": 1}
