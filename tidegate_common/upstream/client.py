"""Requests to replicas over HTTP and gRPC: one client for all that ask them.

Rules:

1. A caller takes a turn, of which at most ``at_once`` are open, and makes its requests in it. What
   they take together is bounded by the turn's time limit; waiting for the turn is not.
2. A body is read up to the request's bound. No redirect is followed, no cookie is kept, no coding
   of the content is asked for or undone.
3. TLS is that of the pool (``ReplicaContexts``): nothing is sent in the clear where it cannot be
   used, and a replica that is not trusted is logged.
4. What is no answer is an ``AskError`` that says which of ``AskFault`` happened. An HTTP status of
   any value is an answer; a gRPC status of the replica's own is an ``AioRpcError``.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import aiohttp
import grpc

from tidegate_common.upstream.awake import awake_timeout
from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTlsError
from tidegate_common.upstream.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    import yarl

    from tidegate_common.upstream.contexts import ReplicaTls

OK: Final = 200
NOT_FOUND: Final = 404
_CHUNK: Final = 64 * 1024
_IDENTITY: Final = {"accept-encoding": "identity"}
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)  # the turn has one
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # Channels to one address do not share a connection with those of others in the process.
    ("grpc.use_local_subchannel_pool", 1),
)


class AskFault(StrEnum):
    """What a replica did in place of an answer, as a clause without its subject."""

    LATE = "does not answer in time"
    REFUSED = "refuses connections"
    UNREACHABLE = "cannot be reached"
    UNTRUSTED = "fails the TLS handshake"
    BROKEN = "breaks the connection off"
    TOO_LARGE = "answers with too much"
    NO_FILES = "cannot be asked: TLS files of its pool cannot be used"


class AskError(Exception):
    """A replica did not answer.

    Args:
        fault: What it did.
        reason: The error in words.
    """

    def __init__(self, fault: AskFault, reason: object = "") -> None:
        super().__init__(str(reason) or fault.value)
        self.fault = fault


class ReplicaAnswer(NamedTuple):
    """An answer over HTTP."""

    status: int
    body: bytes
    kind: str
    """Its content type."""


class ReplicaChannel:
    """A gRPC channel to a replica, through a tunnel where its pool speaks TLS.

    Args:
        address: ``ip:port``.
        tls: TLS of the replica's pool; ``None`` = none.
        contexts: TLS contexts of the process.
        max_bytes: Bound of an answer.

    Raises:
        OSError: There is no place for the tunnel's socket.
    """

    def __init__(
        self, address: str, tls: ReplicaTls | None, contexts: ReplicaContexts, max_bytes: int
    ) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, ssl.SSLError):
                contexts.failed(address, error)

        self._tunnel: Tunnel | None = None
        target = address
        if tls is not None:
            context = lambda: contexts.of(tls, "h2")  # noqa: E731 - of each new connection
            self._tunnel = Tunnel(address, context, tls.server_name, failed)
            target = self._tunnel.open()
        own = (("grpc.default_authority", address), ("grpc.max_receive_message_length", max_bytes))
        self.channel = grpc.aio.insecure_channel(target, options=(*_CHANNEL_OPTIONS, *own))

    async def close(self, grace_s: float | None = None) -> None:
        """Close the channel and its tunnel, after calls had ``grace_s`` to end."""
        await self.channel.close(grace_s)
        if self._tunnel is not None:
            await self._tunnel.close()

    async def call(self, method: str, message: bytes, timeout_s: float | None = None) -> bytes:
        """Make a unary call, within ``timeout_s`` as the replica is told.

        Raises:
            AskError: No answer came.
            grpc.aio.AioRpcError: The replica answered with another status.
        """
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method)
        try:
            return await call(message, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            found = None if self._tunnel is None else self._tunnel.fault
            if self._tunnel is None or isinstance(found, ConnectionRefusedError):
                raise AskError(AskFault.REFUSED, error.details()) from error
            untrusted = isinstance(found, ssl.SSLError)
            fault = AskFault.UNTRUSTED if untrusted else AskFault.BROKEN
            raise AskError(fault, found or error.details()) from error


def url_at(address: str, path: str, tls: ReplicaTls | None) -> str:
    """Return the URL of a path at a replica."""
    return f"{'http' if tls is None else 'https'}://{address}{path}"


class ReplicaTurn:
    """The requests of one turn; see ``ReplicaClient.turn``."""

    def __init__(self, session: aiohttp.ClientSession, contexts: ReplicaContexts) -> None:
        self._session = session
        self._contexts = contexts

    async def http(
        self,
        method: str,
        url: str | yarl.URL,
        *,
        tls: ReplicaTls | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        max_bytes: int = 0,
        takes: Callable[[int], bool] = lambda _: True,
    ) -> ReplicaAnswer:
        """Send one request.

        Args:
            method: HTTP method.
            url: ``url_at`` the replica; a text is encoded where that is missing.
            tls: TLS of the replica's pool; ``None`` = none.
            body: Body; empty = none.
            headers: Headers.
            max_bytes: Bound of the answer's body; 0 = it is not read.
            takes: Told each part's bytes; ``False`` makes the answer too large.

        Raises:
            AskError: No answer came, or it is too large.
        """
        try:
            options: dict[str, Any] = await self._contexts.options(tls)
        except ReplicaTlsError as error:
            raise AskError(AskFault.NO_FILES, error) from error
        try:
            async with self._session.request(
                method,
                url,
                data=body or None,
                headers=headers,
                allow_redirects=False,
                **options,
            ) as answer:
                read = bytearray()
                if max_bytes:
                    async for chunk in answer.content.iter_chunked(_CHUNK):
                        read += chunk
                        if len(read) > max_bytes or not takes(len(chunk)):
                            raise AskError(AskFault.TOO_LARGE)
                kind = answer.headers.get("content-type", "")
                return ReplicaAnswer(answer.status, bytes(read), kind)
        except aiohttp.ClientSSLError as error:
            self._contexts.failed(urlsplit(str(url)).netloc, error)
            raise AskError(AskFault.UNTRUSTED, error) from error
        except TimeoutError:
            raise
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            fault = AskFault.REFUSED if refused else AskFault.UNREACHABLE
            raise AskError(fault, error) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise AskError(AskFault.BROKEN, error or type(error).__name__) from error

    async def check(self, tls: ReplicaTls | None) -> None:
        """Make sure that a pool's TLS can be used over gRPC.

        Raises:
            AskError: Its files cannot be used.
        """
        try:
            if tls is not None:
                await self._contexts.of(tls, "h2")
        except ReplicaTlsError as error:
            raise AskError(AskFault.NO_FILES, error) from error

    @asynccontextmanager
    async def channel(
        self, address: str, *, tls: ReplicaTls | None = None, max_bytes: int
    ) -> AsyncIterator[ReplicaChannel]:
        """Open a gRPC channel for this turn.

        Raises:
            AskError: Files of the pool's TLS cannot be used.
        """
        await self.check(tls)
        opened = ReplicaChannel(address, tls, self._contexts, max_bytes)
        try:
            yield opened
        finally:
            await opened.close()


class ReplicaClient:
    """Requests to replicas; an asynchronous context manager. See the module's rules.

    Args:
        at_once: Most turns at one time.
        contexts: TLS contexts of the process; ``None`` = its own.
        keep_s: Seconds for which an idle connection is kept; ``None`` = each request has its own.
    """

    def __init__(
        self, at_once: int, contexts: ReplicaContexts | None = None, keep_s: float | None = None
    ) -> None:
        self.contexts = ReplicaContexts() if contexts is None else contexts
        self.places = asyncio.Semaphore(at_once)
        self._keep_s = keep_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the connections' pool."""
        connector = (
            aiohttp.TCPConnector(limit=0, force_close=True)
            if self._keep_s is None
            else aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keep_s)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=_IDENTITY,
            timeout=_NO_LIMIT,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def turn(self, timeout_s: float) -> AsyncIterator[ReplicaTurn]:
        """Wait for a place, then make requests within ``timeout_s``.

        Raises:
            AskError: They took longer.
            RuntimeError: The client was not entered.
        """
        session = self._session
        if session is None:
            raise RuntimeError("enter the client first")
        async with self.places:
            try:
                async with awake_timeout(timeout_s):
                    yield ReplicaTurn(session, self.contexts)
            except TimeoutError as error:
                raise AskError(AskFault.LATE, f"no answer in {timeout_s:g} s") from error
