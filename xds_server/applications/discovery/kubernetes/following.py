"""A list and a watch of an API server's objects over HTTP.

Rules:

1. What to ask next, and what an answer means, is the mirror's; here are connections, time and
   credentials only. One request is open at a time.
2. Whatever fails is asked again, after a delay with jitter that grows to ``LONGEST_S`` until a
   watch lasts, or after what the server asks for, up to ``LONGEST_WAIT_S``; only a watch that ended
   in order goes on at once. It never gives up: rights, tokens and servers come back.
3. Each trouble is reported once, and again only if its text changes; an empty text follows when
   the next request is answered.
4. A connection is made within ``CONNECT_S``; a list takes at most ``LIST_S``, and so does the
   beginning of a watch, which lasts at most ``WATCH_S``. A watch on which nothing is heard for
   ``SILENCE_S``, bookmarks included, is given up: its server may be gone without a word.
5. Changes are told ``settle_s`` after the first of them, together: a rollout touches its objects
   in bursts. A whole list is told at once, even if it says nothing new.
6. Redirects are not followed, proxies of the environment are not used: they would get the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp

from tidegate_common.backoff import Backoff
from xds_server.applications.discovery.kubernetes.access import Access, AccessError, AccessFiles
from xds_server.applications.discovery.kubernetes.answers import (
    MAX_PAGE_BYTES,
    MAX_QUOTED,
    BadAnswerError,
    ExpiredError,
    Lines,
    RefusedError,
    ResourceKind,
    event,
    page,
    refusal,
    status,
)
from xds_server.applications.discovery.kubernetes.slices import TooManyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from xds_server.applications.discovery.kubernetes.mirror import ObjectMirror

CONNECT_S: Final = 3.0
LIST_S: Final = 30.0
WATCH_S: Final = (240, 300)
"""Seconds after which the server is asked to end a watch: a different number each time, so that
not all clients come back at once."""
SILENCE_S: Final = 90.0
"""The API server sends a bookmark about once a minute."""
LONGEST_S: Final = 5.0
LONGEST_WAIT_S: Final = 60.0
SETTLE_S: Final = 0.1
LASTING_S: Final = 1.0
"""A watch that ends earlier and says nothing was none: it counts as failed."""
MAX_REFUSAL_BYTES: Final = 65_536
_OK: Final = 200
_HEADERS: Final = {
    "Accept": "application/json",
    # A compressed answer has no bound before it is read.
    "Accept-Encoding": "identity",
    "User-Agent": "tidegate",
}


class _EndedError(Exception):
    """A watch was cut off, which happens: it goes on where it was, after a delay."""


class FollowedObjects(NamedTuple):
    """Which objects are followed."""

    resource: ResourceKind
    namespace: str
    files: AccessFiles
    """Where the API server and the credentials are found."""


class ObjectFollower:
    """Follows objects into a mirror; see the module's rules.

    Args:
        asked: Which objects.
        mirror: What they are kept in.
        told: Called after each change that is to be told, with whether a whole list or the end of a
            trouble is the reason.
        on_trouble: Called with a trouble, and with an empty text at its end.
        jitter: Returns a number in [0, 1).
        settle_s: Seconds in which changes are collected.
    """

    def __init__(
        self,
        asked: FollowedObjects,
        mirror: ObjectMirror[Any],
        told: Callable[[bool], None],
        on_trouble: Callable[[str], None],
        *,
        jitter: Callable[[], float] = random.random,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._asked_for = asked
        self._mirror = mirror
        self._told = told
        self._on_trouble = on_trouble
        self._jitter = jitter
        self._settle_s = settle_s
        self._backoff = Backoff(jitter, LONGEST_S)
        self._server = "the API server"
        self._trouble = ""
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Follow until cancelled; both functions are called from the event loop."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=1)
        try:
            async with aiohttp.ClientSession(
                timeout=timeout, connector=connector, headers=_HEADERS, auto_decompress=False
            ) as session:
                while True:
                    wait_s = await self._turn(session)
                    if wait_s:
                        await asyncio.sleep(wait_s)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _turn(self, session: aiohttp.ClientSession) -> float:
        """Ask once; return the seconds to wait before the next request."""
        mirror = self._mirror
        mirror.aged(asyncio.get_running_loop().time())
        try:
            if mirror.verb == "list":
                await self._list(session)
            else:
                await self._watch(session)
        except ExpiredError:
            mirror.expired()
        except _EndedError:
            pass
        except RefusedError as error:
            mirror.failed()
            self.say(str(error))
            if error.wait_s is not None:
                return min(error.wait_s, LONGEST_WAIT_S)
        except (AccessError, TooManyError) as error:
            mirror.failed()
            self.say(str(error))
        except BadAnswerError as error:
            mirror.failed()
            self.say(f"{self._server} does not answer as an API server: {error}")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError
            mirror.again()
            self.say(f"{self._server} cannot be asked: {_reason(error)}")
        else:
            return 0.0
        return self._backoff.delay_s()

    async def _list(self, session: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(LIST_S):
            async with self._asked(
                session, aiohttp.ClientTimeout(sock_connect=CONNECT_S)
            ) as answer:
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_PAGE_BYTES:
                        raise BadAnswerError(f"a page is larger than {MAX_PAGE_BYTES} bytes")
        whole = self._mirror.page(
            page(bytes(body), self._asked_for.resource), asyncio.get_running_loop().time()
        )
        if whole:
            self._tell(again=True)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        seconds = WATCH_S[0] + int((WATCH_S[1] - WATCH_S[0]) * self._jitter())
        timeout = aiohttp.ClientTimeout(
            total=seconds + SILENCE_S, sock_connect=CONNECT_S, sock_read=SILENCE_S
        )
        loop = asyncio.get_running_loop()
        begun, heard, lines = loop.time(), False, Lines()
        async with self._asked(session, timeout, timeoutSeconds=str(seconds)) as answer:
            if self._trouble and self._mirror.whole:
                self._tell(again=True)
            try:
                async for chunk in answer.content.iter_any():
                    for line in lines.feed(chunk):
                        if self._mirror.change(event(line)):
                            self._later(loop)
                        heard = True
            except (aiohttp.ClientError, OSError) as error:
                raise _EndedError from error
            finally:
                if not heard:
                    self._mirror.again()
                lasting = heard or loop.time() - begun >= LASTING_S
                if lasting:
                    self._backoff.reset()
        if not lasting:
            raise _EndedError

    @contextlib.asynccontextmanager
    async def _asked(
        self, session: aiohttp.ClientSession, limits: aiohttp.ClientTimeout, **more: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the mirror's next request; yield the answer if it is no refusal.

        Raises:
            AccessError: The server or the credentials are not known.
            ExpiredError: 410.
            RefusedError: Any other status than 200.
        """
        resource, namespace, files = self._asked_for
        access = await asyncio.to_thread(files.read)
        self._server = access.url
        async with contextlib.AsyncExitStack() as stack:
            asked = session.get(
                access.url + resource.path(namespace),
                params={**self._mirror.parameters(), **more},
                headers=_authorization(access),
                ssl=access.context if access.context is not None else True,
                server_hostname=access.server_name,
                timeout=limits,
                allow_redirects=False,
            )
            async with asyncio.timeout(LIST_S):  # a watch is answered at once, too
                answer = await stack.enter_async_context(asked)
            if answer.status != _OK:
                said = await _refusal_body(answer)
                raise refusal(
                    self._mirror.verb,
                    namespace,
                    answer.status,
                    said,
                    access.url,
                    answer.headers.get("Retry-After"),
                    resource,
                )
            yield answer

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(self._settle_s, self._settled)

    def _settled(self) -> None:
        self._timer = None
        self._tell(again=False)

    def _tell(self, *, again: bool) -> None:
        """Tell what the mirror holds, and that it could be asked."""
        self._told(again)

    def say(self, text: str) -> None:
        """Report a trouble once; an empty text is its end."""
        if text != self._trouble:
            self._trouble = text
            self._on_trouble(text)


def _authorization(access: Access) -> dict[str, str]:
    return {} if access.token is None else {"Authorization": f"Bearer {access.token}"}


async def _refusal_body(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_REFUSAL_BYTES:
            return {}
    return status(bytes(body))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"[:MAX_QUOTED]
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error  # its own text has the address of an object
    return (str(error) or type(error).__name__)[:MAX_QUOTED]
