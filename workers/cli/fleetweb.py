"""The read-only page `/fleet` in Flower's web server, behind Flower's login.

The page shows what `status`, `pending` and `explain` print, and calls their code. All visitors
share one read of the data, which is at most a few seconds old. Flower's own page `/broker` is given
the lengths of the drivers' queues. Flower cannot load plug-ins, so its list of handlers is
extended.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from flower import urls
from flower.api.tasks import GetQueueLengths
from flower.views import BaseHandler
from flower.views.broker import BrokerView
from tornado import web
from tornado.ioloop import IOLoop

from workers.cli import explaining, fleetpage, pending, status, wholes
from workers.cli.fleetpage import Snapshot
from workers.cli.tools import Tools, named_object
from workers.errors import ApiError, ConfigError, QueueUnavailable
from workers.kube.errors import ForbiddenError
from workers.kube.resources import KubeResources
from workers.observability.logging import get_logger
from workers.queue.kinds import place_of
from workers.queue.limits import read_stats
from workers.queue.names import names_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.config.settings import Settings

_log = get_logger(__name__)

# The maximum age of the first page's data.
FRESH_SECONDS: Final = 3.0
# The pages have threads of their own, so a page that is waiting for the API server does not block
# one of Flower's threads.
_READERS: Final = ThreadPoolExecutor(2, "fleet-page")
# Flower's Redis user -> the Redis user of this page, which has the same password
# (k8s/base/redis/users.acl).
VIEWERS: Final = {"flower": "viewer"}
NO_ACCOUNT: Final = (
    "Flower has no account at the API server, so this page shows only what Redis knows. It does "
    "not show why a claim is waiting that is not in the queue. Add k8s/components/fleet-page, or "
    "start Flower with --kubeconfig."
)
_COUNTS: Final = ("messages", "messages_unacknowledged", "messages_ready")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class NoAccount:
    """Takes the place of the API client if Flower has no API account, and refuses all requests."""

    def get(self, path: str, query: Any = None, **_: Any) -> Any:
        """Refuse the request."""
        del path, query
        raise ForbiddenError(403, "Forbidden", "Flower has no account at the API server")

    watch_raw = get


class Fleet:
    """Reads the data for the pages, on demand.

    Args:
        settings: the settings of Flower.
    """

    def __init__(self, settings: Settings) -> None:
        redis = settings.redis
        user = VIEWERS.get(redis.username, redis.username)
        self.tools = Tools(replace(settings, redis=replace(redis, username=user)))
        self.has_account = True
        try:
            _ = self.tools.kube
        except ConfigError:
            nobody: Any = NoAccount()
            self.tools.kube = KubeResources(nobody)
            self.has_account = False
        self._lock = threading.Lock()
        self._known: Snapshot | None = None
        self._fresh_until = 0.0  # of time.monotonic

    def snapshot(self) -> Snapshot:
        """Return the data for the first page; concurrent callers share one read."""
        with self._lock:
            known = self._known
            if known is None or time.monotonic() >= self._fresh_until:
                known = self._known = self._read()
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return known

    def _read(self) -> Snapshot:
        notes = [] if self.has_account else [NO_ACCOUNT]
        try:
            report = status.gather(self.tools)
        except QueueUnavailable as error:
            return Snapshot(time.time(), notes=[*notes, _away(error)])
        try:
            found, missed = pending.gather(self.tools)
        except (ApiError, QueueUnavailable) as error:
            problem = (
                f"The list of waiting objects is not available: {error}. Check the API server and "
                "Redis, then reload the page."
            )
            return Snapshot(time.time(), report, notes=[*notes, problem])
        return Snapshot(
            time.time(),
            report,
            pending.grouped(found),
            missed if self.has_account else {},
            notes,
        )

    async def queues(self, _: object) -> list[dict[str, Any]]:
        """Return the rows of Flower's page `/broker`.

        This method has the interface of Flower's own broker client. A Celery list contains at most
        one message, so its length would mean nothing.
        """
        return await IOLoop.current().run_in_executor(_READERS, self.lists)

    def lists(self) -> list[dict[str, Any]]:
        """Return the number of keys for each of Celery's lists that is served or has keys.

        Raises:
            QueueUnavailable: Redis does not answer.
        """
        names, found = names_of(self.tools.redis), dict[str, dict[str, Any]]()
        for lane, stats in read_stats(self.tools.redis).items():
            ready = stats.ready + stats.retry
            waiting = ready + stats.running + stats.delayed + stats.blocked
            if stats.limits is None and not waiting:
                continue  # no worker does such work for the driver
            kind, _, driver = lane.partition("|")
            name = names.celery_queue(place_of(unquote(driver), kind))
            row = found.setdefault(name, {"name": name, **dict.fromkeys(_COUNTS, 0)})
            row["messages_ready"] += ready
            row["messages_unacknowledged"] += stats.running
            row["messages"] += waiting
        return [found[name] for name in sorted(found)]

    def explain(self, root: str, word: str, name: str) -> tuple[int, str]:
        """Return the HTTP status and the page of one object.

        Raises:
            ConfigError: the word and name do not identify an object.
        """
        now, title = time.time(), f"{word} {name}"
        if word in wholes.WHOLES:
            whole = wholes.WHOLES[word](self.tools, name)
            cause = whole.shown(self.tools, word, name)
            page = fleetpage.explained(
                root, title, cause, now, facts=whole.facts, groups=whole.groups
            )
            return 200 if whole.is_there else 404, page
        word, namespace, name = named_object((word, name), "explain")
        notes = []
        try:
            answer = explaining.explained(self.tools, word, namespace, name)
        except ForbiddenError as error:
            known = explaining.known_to_redis(self.tools, word, namespace, name)
            if known is None:
                raise
            answer, notes = known, [NO_ACCOUNT if not self.has_account else f"{error}"]
        notes += [_away(answer.problem)] if answer.problem else []
        page = fleetpage.explained(
            root, title, answer.cause, now, entries=answer.history(), notes=notes
        )
        return 404 if answer.cause.code in explaining.ABSENT else 200, page


def _away(error: object) -> str:
    return (
        f"Redis does not answer: {error}. Check the Redis pod and its network policy, and that "
        "Redis has the user viewer (k8s/base/redis/users.acl)."
    )


class _OfFleet(BaseHandler):  # type: ignore[misc]  # Flower has no types
    """Base class of csi-fleet's handlers and of Flower's handlers for queues."""

    def initialize(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def get_broker(self) -> Fleet:
        """Return the object that Flower asks for the lengths of queues."""
        return self.fleet


class _Handler(_OfFleet):
    """A page that is computed outside the event loop; its headers forbid external content."""

    @property
    def root(self) -> str:
        """The prefix of Flower's URLs."""
        prefix = str(self.application.options.url_prefix or "").strip("/")
        return f"/{prefix}" if prefix else ""

    async def show(self, make: Callable[[], tuple[int, str]], title: str) -> None:
        """Respond with the page, or with the error that prevented it."""
        try:
            code, page = await IOLoop.current().run_in_executor(_READERS, make)
        except (ApiError, QueueUnavailable) as error:
            code, page = 503, fleetpage.failed(self.root, title, f"{error}", time.time())
        except ConfigError as error:
            code, page = 404, fleetpage.failed(self.root, title, f"{error}", time.time())
        self.answer(code, page)

    def answer(self, code: int, page: str) -> None:
        """Send a page whose headers forbid content from other servers."""
        for name, value in _HEADERS.items():
            self.set_header(name, value)
        self.set_status(code)
        self.finish(page)


class Overview(_Handler):
    """The page `/fleet`."""

    @web.authenticated
    async def get(self) -> None:
        """Respond with the first page."""
        await self.show(
            lambda: (200, fleetpage.overview(self.root, self.fleet.snapshot())), "Fleet"
        )


class Pending(_Handler):
    """The page `/fleet/pending`."""

    @web.authenticated
    async def get(self) -> None:
        """Respond with all waiting objects; the parameters `cause` and `about` filter them."""
        only = {
            name: self.get_query_argument(name)
            for name in ("cause", "about")
            if name in self.request.query_arguments
        }
        await self.show(
            lambda: (200, fleetpage.waiting(self.root, self.fleet.snapshot(), only)), "Pending"
        )


class Explained(_Handler):
    """The page of one object, for example `/fleet/pvc/shop/data`."""

    @web.authenticated
    async def get(self, word: str, name: str) -> None:
        """Respond with the object's cause, remedy and history."""
        name = unquote(name)
        await self.show(lambda: self.fleet.explain(self.root, word, name), f"{word} {name}")


class Find(_Handler):
    """The search for an object, for example `/fleet/find?object=pvc shop/data`."""

    @web.authenticated
    async def get(self) -> None:
        """Redirect to the object's page; for a claim, the word `pvc` is optional."""
        words = self.get_query_argument("object", "").split()
        if len(words) == 1:
            words = words[0].split("/", 1) if words[0].count("/") > 1 else ["pvc", *words]
        problem = (
            "This does not name an object. Enter a kind and a name, such as `pvc shop/data` or "
            "`driver NAME`."
        )
        word = name = ""
        if len(words) == 2:
            try:
                word, name = wholes.named(tuple(words)) or (words[0].lower(), words[1])
            except ConfigError as error:
                problem = f"{error}"
        if not word:
            self.answer(404, fleetpage.failed(self.root, "Explain", problem, time.time()))
            return
        self.redirect(f"{self.root}/fleet/{quote(word, safe='')}/{quote(name)}")


class Style(_Handler):
    """The style sheet `/fleet/style.css`."""

    @web.authenticated
    async def get(self) -> None:
        """Respond with the style sheet."""
        self.set_header("Content-Type", "text/css; charset=utf-8")
        self.finish(fleetpage.STYLE)


class Broker(_OfFleet, BrokerView):  # type: ignore[misc]
    """Flower's page `/broker`."""


class Lengths(_OfFleet, GetQueueLengths):  # type: ignore[misc]
    """Flower's resource `/api/queues/length`."""


def install(settings: Settings) -> None:
    """Add these pages to the Flower in this process."""
    handed = {"fleet": Fleet(settings)}
    urls.handlers[:0] = [
        web.url(r"/broker", Broker, handed),
        web.url(r"/api/queues/length", Lengths, handed),
        web.url(r"/fleet/?", Overview, handed),
        web.url(r"/fleet/style\.css", Style, handed),
        web.url(r"/fleet/pending", Pending, handed),
        web.url(r"/fleet/find", Find, handed),
        web.url(r"/fleet/([A-Za-z-]+)/(.+)", Explained, handed),
    ]
