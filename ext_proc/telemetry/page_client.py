"""Fetches one page repeatedly: HTTP/1.1 GET over one kept connection, without tasks.

aiohttp costs several times what reading a metrics page costs; this client sends one fixed request
and bounds its response. The parser is ``httptools`` (llhttp, the parser of Node.js).

Rules:

1. One request at a time; each ends exactly once, with a page or with an error.
2. A response has at most ``max_bytes`` of page and ``MAX_HEAD_BYTES`` of headers, and takes at most
   ``timeout_s``, whatever the server does; exceeding a bound closes the connection.
3. Only status 200 without a content coding is a page: redirects and compression are rejected.
4. A server may close a kept connection at any time: a request that meets this is sent once more, on
   a new connection.
5. A page over https is read with the TLS of the replica's pool where it has one, and otherwise
   with the system's certificates. No file is read in the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httptools

from ext_proc.telemetry.dialects import BadPage
from tidegate_common.upstream.contexts import ReplicaContexts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_common.upstream.contexts import ReplicaTls

    Done = Callable[[bytes | Exception], None]
    """Receives the page, or the error."""

MAX_HEAD_BYTES: Final = 65_536
_OK: Final = 200
_PLAIN: Final = (b"", b"identity")


class PageClient(asyncio.Protocol):
    """Client of one page.

    Args:
        url: URL of the page; if it is not HTTP, each fetch fails.
        timeout_s: Bound of one fetch, connecting included.
        max_bytes: Bound of the page.
        tls: TLS of the replica's pool.
        contexts: TLS contexts of the process; ``None`` = its own.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        max_bytes: int,
        tls: ReplicaTls | None = None,
        contexts: ReplicaContexts | None = None,
    ) -> None:
        self._address, self._request = _address_and_request(url)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._tls = tls
        self._contexts = ReplicaContexts() if contexts is None else contexts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done: Done | None = None
        self._again = False
        """The request may be sent once more."""
        self.kept = False
        """Whether the last fetch used the connection of the one before it."""
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def get(self, done: Done) -> None:
        """Fetch the page; ``done`` is called exactly once, later.

        Raises:
            RuntimeError: The previous fetch is still running.
        """
        if self._done is not None:
            raise RuntimeError("one fetch at a time")
        self._loop = loop = asyncio.get_running_loop()
        self._done = done
        self._timer = loop.call_later(self._timeout_s, self._too_late)
        if self._address is None:
            loop.call_soon(self._end, BadPage("the URL is not an http or https URL"))
        elif self._transport is not None and not self._transport.is_closing():
            self._again = self.kept = True
            self._send()
        else:
            self._connect(loop)

    def close(self) -> None:
        """Close the connection and cancel the fetch without calling ``done``."""
        self._done = None
        self._drop()

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the pending request."""
        self._transport = transport  # type: ignore[assignment] # TCP's can write
        self._parser = httptools.HttpResponseParser(self)
        if self._done is None:
            self._drop()
        else:
            self._send()

    def data_received(self, data: bytes) -> None:
        """Parse a part of the response."""
        if self._done is None:
            self._drop()  # unsolicited data
            return
        self._again = False
        self._head_bytes += 0 if self._head_ended else len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end(BadPage("the server switches protocols"))
        except httptools.HttpParserCallbackError as error:
            # An exception of one of the callbacks below.
            cause = error.__context__
            self._end(cause if isinstance(cause, BadPage) else BadPage(str(cause or error)))
        except httptools.HttpParserError as error:
            self._end(BadPage(f"not HTTP: {error}"))
        else:
            if self._whole:
                self._complete()
            elif not self._head_ended and self._head_bytes > MAX_HEAD_BYTES:
                self._end(BadPage(f"headers of more than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the fetch, or repeat it if the server closed a kept connection."""
        self._transport = None
        if self._done is None:
            return
        if self._again and self._loop is not None:
            self._again = False
            self._connect(self._loop)
        elif self._head_ended and not self._sized:
            self._complete()  # a page without a length ends with its connection
        else:
            self._end(exc or ConnectionError("the connection was closed before the page's end"))

    # --- httptools' callbacks ---------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Check a response header."""
        if self._whole:
            self._keeps = False  # an unsolicited second response
            return
        name = name.lower()
        if name == b"content-encoding" and value.strip().lower() not in _PLAIN:
            raise BadPage("the page is compressed although compression was not requested")
        if name in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        """Check the status."""
        if self._whole:
            self._keeps = False
            return
        self._head_ended = True
        self._keeps = self._parser.should_keep_alive()
        status = self._parser.get_status_code()
        if status != _OK:
            raise BadPage(f"HTTP status {status}")

    def on_body(self, data: bytes) -> None:
        """Store a part of the page."""
        if self._whole:
            return
        self._size += len(data)
        if self._size > self._max_bytes:
            raise BadPage(f"the page is larger than {self._max_bytes} bytes")
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Record that the response is complete."""
        self._whole = True

    # --- Internals --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Discard the previous response."""
        self._parts: list[bytes] = []
        self._size = 0
        self._head_bytes = 0
        self._head_ended = False
        self._sized = False
        self._keeps = False
        self._whole = False

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        self.kept = False
        self._connecting = loop.create_task(self._open(loop))

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        host, port, over_tls = self._address or ("", 0, False)
        try:
            context = name = None
            if over_tls and self._tls is not None:
                context, name = await self._contexts.of(self._tls), self._tls.server_name or host
            elif over_tls:
                context = await asyncio.to_thread(ssl.create_default_context)
            await loop.create_connection(
                lambda: self, host, port, ssl=context, server_hostname=name
            )
        except (OSError, ValueError) as error:
            self._connecting = None
            self._end(error)

    def _send(self) -> None:
        self._begin()
        if self._transport is not None:
            self._transport.write(self._request)

    def _too_late(self) -> None:
        self._end(TimeoutError())

    def _complete(self) -> None:
        page = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._end(page, keep=self._keeps and self._transport is not None)

    def _end(self, result: bytes | Exception, *, keep: bool = False) -> None:
        done, self._done = self._done, None
        if not keep:
            self._drop()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if done is not None:
            done(result)

    def _drop(self) -> None:
        """Cancel everything that is running and close the connection."""
        self._parts = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            if not self._connecting.done():
                self._connecting.cancel()
            self._connecting = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


def _address_and_request(url: str) -> tuple[tuple[str, int, bool] | None, bytes]:
    """Return host, port and whether TLS is used, and the request to send."""
    try:
        parts = urlsplit(url)
        tls, port = parts.scheme == "https", parts.port
    except ValueError:
        return None, b""
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        return None, b""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = (
        f"GET {target} HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n"
        "accept: text/plain;version=0.0.4\r\naccept-encoding: identity\r\n\r\n"
    )
    return (parts.hostname, port or (443 if tls else 80), tls), request.encode("ascii")
