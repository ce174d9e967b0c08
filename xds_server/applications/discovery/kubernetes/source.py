"""The source ``kubernetes``: a list and a watch of EndpointSlices over HTTP.

Rules:

1. What to ask next, and what an answer means, is the ``Mirror``'s; here are connections, time and
   credentials only. One request is open at a time.
2. Whatever fails is asked again, after a delay with jitter that grows to ``LONGEST_S`` until a
   watch lasts, or after what the server asks for, up to ``LONGEST_WAIT_S``; only a watch that ended
   in order goes on at once. It never gives up: rights, tokens and servers come back.
3. Each trouble is reported once, and again only if its text changes; an empty text follows when
   the next request is answered.
4. A connection is made within ``CONNECT_S``; a list takes at most ``LIST_S``, and so does the
   beginning of a watch, which lasts at most ``WATCH_S``. A watch on which nothing is heard for
   ``SILENCE_S``, bookmarks included, is given up: its server may be gone without a word.
5. Changes are reported ``settle_s`` after the first of them, together: a rollout touches its
   slices in bursts. A whole list is reported at once, even if it says nothing new.
6. Redirects are not followed, proxies of the environment are not used: they would get the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

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
    event,
    page,
    refusal,
    status,
)
from xds_server.applications.discovery.kubernetes.mirror import Mirror
from xds_server.applications.discovery.kubernetes.slices import TooManyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from xds_server.applications.discovery.values import Observation
    from xds_server.fleet.model.kubernetes import KubernetesSpec

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


class KubernetesSource:
    """Looks for endpoints in the EndpointSlices that ``spec`` selects; see the module's rules.

    Args:
        spec: The pool's settings.
        files: Where the API server and the credentials are found; by default by ``spec.api``.
        jitter: Returns a number in [0, 1).
        settle_s: Seconds in which changes are collected.
    """

    def __init__(
        self,
        spec: KubernetesSpec,
        files: AccessFiles | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._spec = spec
        self._files = files or AccessFiles(spec.api)
        self._jitter = jitter
        self._settle_s = settle_s
        self._mirror = Mirror(spec)
        self._backoff = Backoff(jitter, LONGEST_S)
        self._server = "the API server"
        self._trouble = ""
        self._reported: Observation | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._found: Callable[[Observation], None] = lambda _: None
        self._on_trouble: Callable[[str], None] = lambda _: None

    async def run(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> None:
        """Look until cancelled; both functions are called from the event loop."""
        self._found, self._on_trouble = found, trouble
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
            self._say(str(error))
            if error.wait_s is not None:
                return min(error.wait_s, LONGEST_WAIT_S)
        except (AccessError, TooManyError) as error:
            mirror.failed()
            self._say(str(error))
        except BadAnswerError as error:
            mirror.failed()
            self._say(f"{self._server} does not answer as an API server: {error}")
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError
            mirror.again()
            self._say(f"{self._server} cannot be asked: {_reason(error)}")
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
        whole = self._mirror.page(page(bytes(body)), asyncio.get_running_loop().time())
        if whole:
            self._report(again=True)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        seconds = WATCH_S[0] + int((WATCH_S[1] - WATCH_S[0]) * self._jitter())
        timeout = aiohttp.ClientTimeout(
            total=seconds + SILENCE_S, sock_connect=CONNECT_S, sock_read=SILENCE_S
        )
        loop = asyncio.get_running_loop()
        begun, heard, lines = loop.time(), False, Lines()
        async with self._asked(session, timeout, timeoutSeconds=str(seconds)) as answer:
            if self._trouble and self._mirror.whole:
                self._report(again=True)
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
        access = await asyncio.to_thread(self._files.read)
        self._server = access.url
        async with contextlib.AsyncExitStack() as stack:
            asked = session.get(
                f"{access.url}/apis/discovery.k8s.io/v1/namespaces/{self._spec.namespace}"
                "/endpointslices",
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
                    self._spec.namespace,
                    answer.status,
                    said,
                    access.url,
                    answer.headers.get("Retry-After"),
                )
            yield answer

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(self._settle_s, self._settled)

    def _settled(self) -> None:
        self._timer = None
        self._report(again=False)

    def _report(self, *, again: bool) -> None:
        """Report what the mirror holds; an equal observation only if ``again``."""
        try:
            seen = self._mirror.seen()
        except TooManyError as error:
            self._say(str(error))
            return
        if seen.observation is not None and (again or seen.observation != self._reported):
            self._reported = seen.observation
            self._found(seen.observation)
        self._say(seen.fault)

    def _say(self, text: str) -> None:
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
