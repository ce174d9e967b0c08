"""A list and a watch of an API server's objects over HTTP.

Rules:

1. What to ask next, and what an answer means, is the mirror's; here are connections, time and
   credentials only. One request is open at a time.
2. Whatever fails is asked again, after a delay with jitter that grows to ``LONGEST_S`` until a
   watch lasts, or after what the server asks for, up to ``LONGEST_WAIT_S``; only a watch that ended
   in order goes on at once. It never gives up: rights, tokens and servers come back.
3. Each trouble is reported once, and again only if its text changes; an empty text follows when
   the next request is answered.
4. A list takes at most ``LIST_S``, and a watch lasts at most ``WATCH_S``. A watch on which nothing
   is heard for ``SILENCE_S``, bookmarks included, is given up: its server may be gone without a
   word.
5. Changes are told ``settle_s`` after the first of them, together: a rollout touches its objects
   in bursts. A whole list is told at once, even if it says nothing new.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp

from tidegate_common.backoff import Backoff
from xds_server.applications.discovery.kubernetes.access import AccessError, AccessFiles
from xds_server.applications.discovery.kubernetes.answers import (
    MAX_PAGE_BYTES,
    BadAnswerError,
    ExpiredError,
    Lines,
    RefusedError,
    ResourceKind,
    event,
    page,
)
from xds_server.applications.discovery.kubernetes.asking import (
    CONNECT_S,
    ApiCall,
    answered,
    body,
    reason,
    session,
)
from xds_server.applications.discovery.kubernetes.slices import TooManyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from xds_server.applications.discovery.kubernetes.mirror import ObjectMirror

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
        try:
            async with session(1) as http:
                while True:
                    wait_s = await self._turn(http)
                    if wait_s:
                        await asyncio.sleep(wait_s)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _turn(self, http: aiohttp.ClientSession) -> float:
        """Ask once; return the seconds to wait before the next request."""
        mirror = self._mirror
        mirror.aged(asyncio.get_running_loop().time())
        try:
            if mirror.verb == "list":
                await self._list(http)
            else:
                await self._watch(http)
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
            self.say(f"{self._server} cannot be asked: {reason(error)}")
        else:
            return 0.0
        return self._backoff.delay_s()

    async def _list(self, http: aiohttp.ClientSession) -> None:
        async with asyncio.timeout(LIST_S):
            async with self._asked(http, aiohttp.ClientTimeout(sock_connect=CONNECT_S)) as answer:
                found = page(await body(answer, MAX_PAGE_BYTES), self._asked_for.resource)
        whole = self._mirror.page(found, asyncio.get_running_loop().time())
        if whole:
            self._tell(again=True)

    async def _watch(self, http: aiohttp.ClientSession) -> None:
        seconds = WATCH_S[0] + int((WATCH_S[1] - WATCH_S[0]) * self._jitter())
        timeout = aiohttp.ClientTimeout(
            total=seconds + SILENCE_S, sock_connect=CONNECT_S, sock_read=SILENCE_S
        )
        loop = asyncio.get_running_loop()
        begun, heard, lines = loop.time(), False, Lines()
        async with self._asked(http, timeout, timeoutSeconds=str(seconds)) as answer:
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
        self, http: aiohttp.ClientSession, limits: aiohttp.ClientTimeout, **more: str
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
        asked = ApiCall(self._mirror.verb, resource, namespace)
        params = {**self._mirror.parameters(), **more}
        async with answered(http, access, asked, params=params, timeout=limits) as answer:
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
