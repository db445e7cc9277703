"""The catalog loses data without a new epoch: the watcher notices the loss and lists again."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.waiting import wait_until
from watcher import keeper
from workers.errors import CatalogIncomplete
from workers.queue.catalog import CatalogReader
from workers.queue.catalogkinds import KIND_CLASSES
from workers.queue.names import NAMES


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(keeper, "CHECK_SECONDS", 0.1)


def names_in(scene, storage_class):
    """Return True if a new worker finds the class, or None while the catalog is not complete."""
    with suppress(CatalogIncomplete):
        return storage_class in CatalogReader(scene.redis).all(KIND_CLASSES)
    return None


def wait_for(scene, storage_class):
    wait_until(lambda: names_in(scene, storage_class), 15, "class in the catalog")


def test_cor4_an_unreadable_entry_stops_no_kind_for_ever(scene, cluster):
    """An unreadable entry makes its kind incomplete until the watcher has listed again.

    The reader moves the entry to the quarantine.
    """
    scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    wait_for(scene, storage_class)
    scene.redis.hset(NAMES["catalog"].full + KIND_CLASSES, storage_class, b"999999 {")
    assert names_in(scene, storage_class) is None
    wait_for(scene, storage_class)


def test_cor4_a_lost_completion_is_made_good(scene, cluster):
    """A lost `mark_complete`, for example by a fail-over, is written again."""
    scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    wait_for(scene, storage_class)
    scene.redis.hdel(NAMES["complete"].full, KIND_CLASSES)
    assert names_in(scene, storage_class) is None
    wait_for(scene, storage_class)


def test_a_changed_epoch_without_a_wipe_means_list_and_add_again(scene, cluster):
    """After a new epoch the watcher lists and adds again, because a restart or a promotion can lose
    the last writes although most data remains.
    """
    scene.register()
    watcher = scene.start_watcher()
    storage_class = cluster.storage_class("fast")
    wait_for(scene, storage_class)
    lists = watcher.reflectors["storageclasses"].health.lists
    scene.redis.set(NAMES["epoch"].full, "another")
    wait_until(
        lambda: watcher.reflectors["storageclasses"].health.lists > lists, 15, "listed again"
    )
    wait_for(scene, storage_class)
