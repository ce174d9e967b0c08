"""Takes an Envoy out of service without cutting an answer, over its admin page.

Envoy exits at once at SIGTERM, and every answer in flight is cut. So what stops it first runs this
(a preStop hook, ``ExecStop``): Envoy is idle when it returns.

Rules:

1. Envoy first counts as failed (``/healthcheck/fail``): each answer now closes its connection
   (HTTP/1) or tells its client to open another one (HTTP/2, HTTP/3). New connections are still
   taken for ``pause_s``, while load balancers learn that this Envoy goes.
2. Its listeners then close (``/drain_listeners``), and new connections are refused.
3. It is idle when no request is active and none has come for ``QUIET_S``. A request that comes on
   an open connection is still answered.
4. At the end of ``timeout_s`` what is still active is counted and told.
5. Envoy is left running: whoever called ends it. Several may call at one time. Where its admin page
   stops listening meanwhile, Envoy has ended.

Sources: ``/healthcheck/fail`` and ``/drain_listeners`` of Envoy's administration interface; the
counters ``downstream_rq_active`` and ``downstream_rq_total`` of its connection managers.
"""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET_S: Final = 1.0
EVERY_S: Final = 0.1
"""Seconds between two looks."""
ASK_S: Final = 5.0
"""Seconds that Envoy may take for an answer."""
MAX_ANSWER: Final = 4 * 2**20
"""Most bytes of an answer that are read."""
COUNTERS: Final = "/stats?format=json&filter=^http%5C..*%5C.downstream_rq_(active|total)$"
_ADMIN: Final = "http.admin."


class Ask(Protocol):
    """Asks an Envoy's admin page."""

    def __call__(self, method: str, path: str) -> bytes:
        """Return the body of the answer to a request."""


class EnvoyRequests(NamedTuple):
    """Requests of an Envoy's clients, in all listeners."""

    active: int
    total: int
    """Since its start."""


class Left(NamedTuple):
    """How an Envoy was left."""

    ended: bool
    """It does not listen on its admin page (any more)."""
    active: int
    """Requests that were active at the last look."""


def admin_page(address: str) -> Ask:
    """Return what asks the admin page at ``host:port``.

    It raises ``OSError`` where the connection fails, and ``ValueError`` where the answer is none of
    Envoy's.
    """
    host, _, port = address.rpartition(":")

    def ask(method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=ASK_S)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER)
        except http.client.RemoteDisconnected:  # an OSError too
            raise
        except http.client.HTTPException as error:
            raise ValueError(f"it answers no HTTP: {error!r}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ValueError(f"it answers {answer.status} to {method} {path}")
        return body

    return ask


def requests_of(page: bytes) -> EnvoyRequests:
    """Return the requests that an answer to ``COUNTERS`` tells; those of the admin page left out.

    Raises:
        ValueError: It is no answer of Envoy's.
    """
    try:
        stats: list[dict[str, Any]] = orjson.loads(page)["stats"]
        told = [(str(each["name"]), int(each["value"])) for each in stats if "name" in each]
    except (KeyError, TypeError) as error:
        raise ValueError("its counters have another form than Envoy's") from error
    kept = [(name, value) for name, value in told if not name.startswith(_ADMIN)]
    return EnvoyRequests(
        sum(value for name, value in kept if name.endswith("_active")),
        sum(value for name, value in kept if name.endswith("_total")),
    )


def leave(
    ask: Ask,
    pause_s: float,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Left:
    """Take an Envoy out of service, and return once it is idle. See the module's rules.

    Args:
        ask: Its admin page.
        pause_s: Seconds in which new connections are still taken.
        timeout_s: Most seconds in all, the pause included.
        clock: Monotonic seconds.
        sleep: Waits for some seconds.

    Raises:
        OSError: The admin page cannot be asked, at the first time or for another reason than that
            Envoy has ended.
        ValueError: The page is not Envoy's.
    """
    began = clock()
    ask("POST", "/healthcheck/fail")
    sleep(min(pause_s, timeout_s))
    try:
        ask("POST", "/drain_listeners")
        seen, since = requests_of(ask("GET", COUNTERS)), clock()
        while seen.active or clock() - since < QUIET_S:
            if clock() - began >= timeout_s:
                break
            sleep(EVERY_S)
            now = requests_of(ask("GET", COUNTERS))
            if now != seen:
                seen, since = now, clock()
    except (ConnectionRefusedError, ConnectionResetError):
        return Left(ended=True, active=0)
    return Left(ended=False, active=seen.active)
