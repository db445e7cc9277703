"""Builds the history of a claim or volume, from recorded events and the objects' timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.explain.words import duration, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from workers.queue.inspect import Note


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history; `at` is Unix time."""

    at: float
    text: str


def timeline(
    notes: Iterable[Note], claim: Mapping[str, Any] | None, volume: Mapping[str, Any] | None
) -> list[Entry]:
    """Return the history, oldest first. Timestamps from objects are whole seconds."""
    entries = [Entry(note.at, text) for note in notes if (text := _words(note.event, note.detail))]
    if claim is not None:
        entries += _of_claim(claim)
    if volume is not None:
        metadata = volume["metadata"]
        saved = any("PersistentVolume saved" in entry.text for entry in entries)
        if not saved and (at := stamp(metadata.get("creationTimestamp") or "")):
            entries.append(Entry(at, f"PersistentVolume {metadata['name']} saved"))
        if at := stamp(metadata.get("deletionTimestamp") or ""):
            entries.append(Entry(at, "volume marked for deletion"))
    # The API server's timestamps are rounded down, so a cause is sorted before its effects.
    return sorted(entries, key=lambda entry: entry.at)


def _of_claim(claim: Mapping[str, Any]) -> list[Entry]:
    metadata = claim["metadata"]
    entries = []
    if at := stamp(metadata.get("creationTimestamp") or ""):
        entries.append(Entry(at, "claim created"))
    if at := stamp(metadata.get("deletionTimestamp") or ""):
        entries.append(Entry(at, "claim marked for deletion"))
    if (claim.get("status") or {}).get("phase") == "Bound" and (at := _status_time(metadata)):
        # Binding is the last step, so the end of that second is used.
        entries.append(Entry(at + 0.999, "claim bound"))
    return entries


def _status_time(metadata: Mapping[str, Any]) -> float:
    times = [
        stamp(entry.get("time") or "")
        for entry in metadata.get("managedFields") or ()
        if entry.get("subresource") == "status"
    ]
    return max(times, default=0.0)


def _words(event: str, detail: str) -> str:
    parts = detail.split()
    if event == "queued":
        return "queued as a retry" if detail else "seen and queued"
    if event == "taken":
        return f"taken by worker {':'.join(detail.split(':')[:2])}"
    if event == "intent":
        return "attempt recorded, before the driver is called"
    if event == "rpc" and len(parts) == 3:
        return f"{parts[0]}: {parts[1]} in {float(parts[2]):.3f} s"
    if event == "api" and len(parts) == 4:
        return _api(*parts)
    if event == "failed" and len(parts) == 2:
        delay = int(parts[1])
        if delay < 0:
            return f"failed {parts[0]} times, no longer retried"
        return f"failure {parts[0]}, next attempt in {duration(delay / 1000)}"
    if event == "released" and detail.isdigit():
        return f"put back, rechecked in {duration(int(detail) / 1000)}"
    return {
        "error": f"error: {detail}",
        "waits": f"interrupted: {detail}",
        "blocked": f"waiting for {detail}, which is working on the same volume",
        "lost": f"worker {':'.join(detail.split(':')[:2])} is gone, another worker takes over",
        "restored": "lease kept after Redis restarted, failed over or lost its data",
        "end": f"result: {detail}" if detail else "",
        "done": "finished",
    }.get(event, "")


def _api(verb: str, resource: str, status: str, seconds: str) -> str:
    took = f"({status}) in {float(seconds):.3f} s"
    if resource == "persistentvolumes" and verb == "create" and status == "201":
        return f"PersistentVolume saved {took}"
    if resource == "configmaps" and verb == "patch" and status == "404":
        return f"API server: no ConfigMap holds this record yet, so one is created {took}"
    return f"API server: {verb} {resource} {took}"
