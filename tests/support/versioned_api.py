"""A small API server with a history: lists, watches from a resourceVersion, and a restore.

`restore` sets objects and resourceVersion back to a snapshot, as a restore of etcd from a backup
does. Open watches stay open and silent until the version has passed theirs; `drop_watches` ends
them, as a restarting API server does. It serves every collection, without selectors.
"""

from __future__ import annotations

import copy
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.loopback import LoopbackServer

JsonObject = dict[str, Any]


class VersionedApi(LoopbackServer):
    """The server; use as a context manager.

    Attributes:
        version: of the present.
        held: plural -> lists of it wait until this is set.
        lists: the paths of the complete lists that were answered.
        looks: how many lists of one object, which ask for the present version, were answered.
    """

    def __init__(self) -> None:
        self.version = 100
        self.held: defaultdict[str, threading.Event] = defaultdict(_set_event)
        self.lists: list[str] = []
        self.looks = 0
        self._objects: dict[tuple[str, str], JsonObject] = {}
        self._log: list[tuple[int, str, str, JsonObject]] = []
        self._changed = threading.Condition()
        self._watches = 0
        self._stopped = False
        super().__init__()

    def _end(self) -> None:
        self._stopped = True
        for event in self.held.values():
            event.set()
        self.drop_watches()

    def put(self, path: str, name: str, **body: Any) -> JsonObject:
        """Create or replace an object."""
        with self._changed:
            is_new = (path, name) not in self._objects
            before = self._objects.get((path, name), {"metadata": {}})
            self.version += 1
            metadata = {
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **before["metadata"],
                **body.pop("metadata", {}),
                "resourceVersion": str(self.version),
            }
            item = {**before, **body, "metadata": metadata}
            self._objects[path, name] = item
            self._note(path, "ADDED" if is_new else "MODIFIED", item)
            return item

    def drop(self, path: str, name: str) -> None:
        """Delete an object."""
        with self._changed:
            item = copy.deepcopy(self._objects.pop((path, name)))
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            self._note(path, "DELETED", item)

    def pass_time(self, versions: int) -> None:
        """Advance the version, as writes of objects that no test reads would."""
        with self._changed:
            self.version += versions

    def backup(self) -> tuple[dict[tuple[str, str], JsonObject], int]:
        """Return the argument for `restore`."""
        with self._changed:
            return copy.deepcopy(self._objects), self.version

    def restore(self, backup: tuple[dict[tuple[str, str], JsonObject], int]) -> None:
        """Set everything back; open watches receive no event about this."""
        with self._changed:
            self._objects, self.version = copy.deepcopy(backup[0]), backup[1]
            self._log.clear()

    def drop_watches(self) -> None:
        """End every open watch."""
        with self._changed:
            self._watches += 1
            self._changed.notify_all()

    def _note(self, path: str, kind: str, item: JsonObject) -> None:
        self._log.append((self.version, path, kind, copy.deepcopy(item)))
        self._changed.notify_all()

    def _listed(self, path: str, query: dict[str, str]) -> bytes:
        is_whole = query.get("limit") != "1"
        if is_whole:
            self.held[path.rsplit("/", 1)[-1]].wait(60)
        with self._changed:
            items = [item for (one, _), item in self._objects.items() if one == path]
            if is_whole:
                self.lists.append(path)
            else:
                self.looks += 1
            metadata = {"resourceVersion": str(self.version)}
            return json.dumps({"metadata": metadata, "items": items}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = dict(parse_qsl(url.query))
                try:
                    if "watch" in query:
                        self._watch(url.path, int(query["resourceVersion"]))
                    else:
                        self._send(api._listed(url.path, query))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _watch(self, path: str, since: int) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                watches = api._watches
                while True:
                    with api._changed:
                        found = [one for one in api._log if one[0] > since and one[1] == path]
                        if not found:
                            api._changed.wait(0.5)
                        if api._watches != watches or api._stopped:
                            self.close_connection = True
                            return
                    for version, _, kind, item in found:
                        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                        self.wfile.flush()
                        since = version

        return Handler


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
