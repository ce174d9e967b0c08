"""Asks replicas that wait to join whether their model is ready.

Rules:

1. A replica with an HTTP address is asked by the path that health checks use; 200 means ready. One
   that answers a readiness path of Triton's with 404 is no Triton, and is asked by
   ``ENGINE_READY_PATHS``.
2. One that speaks gRPC only is asked with KServe's ``ModelReady`` where the pool names a model, and
   with gRPC's health protocol where it does not or where ``ModelReady`` is not implemented.
3. Where the pool speaks TLS to its replicas, so do questions, with the same files. They are read
   for each question, so that renewed ones are used. What the files do not allow to ask is answered
   with "ready" and logged once per reason: health checks of Envoys see what is wrong.
4. A question takes at most the pool's ``health.timeout``, waiting for its turn not included; at
   most ``AT_ONCE`` are open. No body is read, and no redirect followed.

Sources: ``grpc/health/v1/health.proto``; ``ModelReady`` of the Open Inference Protocol,
``grpc_predict_v2.proto``: a request has ``name = 1`` and ``version = 2``, an answer ``ready = 1``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import grpc
import grpc.aio
import structlog

from tidegate_api.pools import ENGINE_READY_PATHS, TRITON_PATHS
from tidegate_common.upstream.contexts import Alpn, ReplicaTlsError, client_context
from tidegate_common.upstream.tunnel import Tunnel
from xds_server.resources.clusters import probe_path

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

AT_ONCE: Final = 32
"""Most questions at one time."""
MAX_SAID: Final = 64
"""Most reasons that are remembered as logged."""

_OK, _NOT_FOUND = 200, 404
_MODEL_READY: Final = "/inference.GRPCInferenceService/ModelReady"
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_YES: Final = b"\x08\x01"
"""Both ``ready: true`` and ``status: SERVING``."""
_MAX_ANSWER: Final = 65_536

_log = structlog.get_logger(__name__)


class Question(NamedTuple):
    """What to ask a replica."""

    http: str | None
    """Its HTTP address; ``None`` = ask over gRPC."""
    grpc: str | None
    path: str
    """HTTP path."""
    model: str
    """Model of the pool; empty = it names none."""
    version: str
    """Version of the model; empty = any."""
    tls: UpstreamTls | None
    timeout_s: float


def question_of(pool: PoolSpec, spec: EndpointSpec) -> Question:
    """Return what to ask a replica of a pool."""
    wanted = pool.variant_of(spec)
    variant = next((each for each in pool.variants if each.name == wanted), pool.variants[0])
    return Question(
        http=spec.http,
        grpc=spec.grpc,
        path=probe_path(pool, variant),
        model=pool.match.models[0] if pool.match.models else "",
        version=variant.model_version or "",
        tls=pool.upstream_tls,
        timeout_s=pool.health.timeout,
    )


class Readiness:
    """Asks replicas; an asynchronous context manager. See the module's rules."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._said: set[str] = set()

    async def __aenter__(self) -> Self:
        """Open the connections' pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=AT_ONCE), auto_decompress=False
        )
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def __call__(self, question: Question) -> bool:
        """Return whether the replica says that its model is ready.

        Raises:
            RuntimeError: The context was not entered.
        """
        session = self._session
        if session is None:
            raise RuntimeError("not entered")
        async with self._gate:
            context: ssl.SSLContext | None = None
            if question.tls is not None:
                protocol: Alpn = "http/1.1" if question.http is not None else "h2"
                try:
                    context = await asyncio.to_thread(client_context, question.tls, protocol)
                except ReplicaTlsError as error:
                    self._say(question.tls, error)
                    return True
            with contextlib.suppress(
                aiohttp.ClientError, grpc.aio.AioRpcError, TimeoutError, OSError, ValueError
            ):
                async with asyncio.timeout(question.timeout_s):
                    if question.http is not None:
                        return await _over_http(session, question, context)
                    return await _over_grpc(question, context)
        return False

    def _say(self, tls: UpstreamTls, error: Exception) -> None:
        reason = f"{tls.ca or '-'} {tls.certificate or '-'} {tls.key or '-'}: {error}"[:400]
        if reason not in self._said and len(self._said) < MAX_SAID:
            self._said.add(reason)
            _log.warning("readiness_not_asked", files=reason)


async def _over_http(
    session: aiohttp.ClientSession, question: Question, context: ssl.SSLContext | None
) -> bool:
    paths = [question.path]
    if question.path.startswith(TRITON_PATHS):
        paths += ENGINE_READY_PATHS
    scheme = "http" if context is None else "https"
    for path in paths:
        async with session.get(
            f"{scheme}://{question.http}{path}",
            allow_redirects=False,
            ssl=True if context is None else context,
            server_hostname=None if question.tls is None else question.tls.server_name,
        ) as answer:
            if answer.status != _NOT_FOUND:
                return answer.status == _OK
    return False


async def _over_grpc(question: Question, context: ssl.SSLContext | None) -> bool:
    address = question.grpc or ""
    async with contextlib.AsyncExitStack() as stack:
        target = address
        if context is not None:
            name = None if question.tls is None else question.tls.server_name

            async def known() -> ssl.SSLContext:
                return context

            tunnel = Tunnel(address, known, name)
            target = (await stack.enter_async_context(tunnel)).target
        channel = await stack.enter_async_context(_channel(target, address))
        if question.model:
            asked = _field(1, question.model) + _field(2, question.version)
            try:
                return await _says_yes(channel, _MODEL_READY, asked)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        return await _says_yes(channel, _HEALTH, b"")


@contextlib.asynccontextmanager
async def _channel(target: str, authority: str) -> AsyncIterator[grpc.aio.Channel]:
    options: list[tuple[str, Any]] = [
        ("grpc.default_authority", authority),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", _MAX_ANSWER),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield channel


async def _says_yes(channel: grpc.aio.Channel, method: str, request: bytes) -> bool:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return await call(request) == _YES


def _field(number: int, text: str) -> bytes:
    """Return a text field of a protobuf message; nothing if it is empty."""
    content = text.encode()
    if not content:
        return b""
    length, size = bytearray(), len(content)
    while size > 0x7F:  # noqa: PLR2004 - a varint has seven bits per byte
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content
