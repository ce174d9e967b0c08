"""The gateway's ports: HTTP and gRPC, for Envoys' questions and for operators.

Rules:

1. At most ``MAX_CALLS`` calls are answered at one time, of all ports together; further ones are
   refused at once with 503 or RESOURCE_EXHAUSTED.
2. Questions have at most ``MAX_QUESTION`` bytes, changes ``MAX_CHANGE``.
3. With certificates a caller needs a role (``callers.py``); over HTTP a connection then carries one
   request.
4. Streams have bounds of their own (``streams/watches.py``).
5. The pools in sight come from a header that Envoy sets itself; without it all are.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import grpc
from aiohttp import web

from gateway.callers import NAMES_HEADER, Callers
from gateway.changes import METHODS, is_change
from gateway.grpc_answers import HEALTH, GrpcReply
from gateway.http_answers import HttpQuestion, HttpReply, refusal
from gateway.questions import SERVICE, Scope
from gateway.streams.watches import REFLECTIONS, STREAMS, WATCH
from tidegate_api.names import ENDPOINT_HEADER, IN_SIGHT_HEADER, REASON_HEADER, REPLICAS_HEADER
from tidegate_common.tls.contexts import peer_of
from tidegate_common.tls.rpc import add_port, guarded
from tidegate_common.tls.rpc import peer_of as peer_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gateway.changes import ReplicaChanges
    from gateway.grpc_answers import GrpcAnswers
    from gateway.http_answers import HttpAnswers
    from gateway.streams.watches import StreamAnswers
    from tidegate_common.tls.rpc import OnRefused
    from tidegate_common.tls.settings import Secured

MAX_CALLS: Final = 64
MAX_QUESTION: Final = 64 * 1024
MAX_CHANGE: Final = 16 * 2**20
MAX_NAMES: Final = 8192
"""Longest header of the pools in sight."""
_ANY_PATH: Final = "/http"
_MARGIN: Final = 0.9
"""Share of a caller's deadline that replicas get."""
_CODES: Final = {each.value[0]: each for each in grpc.StatusCode}
_BUSY: Final = f"{MAX_CALLS} calls are being answered already"


class CannotListenError(OSError):
    """An address cannot be bound; the message names it and the remedy."""


class GatewayCalls:
    """Answers calls of all ports.

    Args:
        http: Answers over HTTP.
        grpc_: Answers over gRPC.
        changes: Passes changes on.
        streams: Answers calls that are streams.
        timeout_s: Seconds for a question.
        change_timeout_s: Seconds for a change.
    """

    def __init__(
        self,
        http: HttpAnswers,
        grpc_: GrpcAnswers,
        changes: ReplicaChanges,
        streams: StreamAnswers,
        *,
        timeout_s: float,
        change_timeout_s: float,
    ) -> None:
        self._http = http
        self._grpc = grpc_
        self._changes = changes
        self.streams = streams
        self._timeout_s = timeout_s
        self._change_timeout_s = change_timeout_s
        self.running = 0
        """Calls that are being answered."""
        self.answered: dict[tuple[str, str], int] = {}
        """Answered calls by protocol and outcome: `ok`, `error` or `busy`."""

    @property
    def questions(self) -> tuple[str, ...]:
        """Methods of questions over gRPC."""
        return self._grpc.methods

    async def http(self, asked: HttpQuestion, scope: Scope, *, admin: bool) -> HttpReply:
        """Answer a request."""
        if self.running >= MAX_CALLS:
            self._count("http", "busy")
            return refusal(503, "saturated", _BUSY)
        with self._call():
            if admin and is_change(asked.path):
                given = scope._replace(timeout_s=self._change_timeout_s)
                reply = await self._changes.http(asked, given)
            else:
                given = scope._replace(timeout_s=self._timeout_s)
                reply = await self._http.answer(asked, given)
        self._count("http", "ok" if reply.status < web.HTTPBadRequest.status_code else "error")
        return reply

    async def grpc(
        self, path: str, message: bytes, scope: Scope, remaining_s: float | None
    ) -> GrpcReply:
        """Answer a call.

        Args:
            path: ``/package.Service/Method``.
            message: The serialized request.
            scope: Which replicas it is about.
            remaining_s: Seconds until the caller's deadline; ``None`` = it has none.
        """
        if self.running >= MAX_CALLS:
            self._count("grpc", "busy")
            return GrpcReply(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], details=_BUSY)
        method = path.removeprefix(SERVICE)
        most = self._change_timeout_s if method in METHODS else self._timeout_s
        if remaining_s is not None:
            most = max(0.001, min(most, remaining_s * _MARGIN))
        given = scope._replace(timeout_s=most)
        with self._call():
            if path == HEALTH:
                reply = await self._grpc.health(message, given)
            elif method in METHODS:
                reply = await self._changes.grpc(method, message, given)
            else:
                reply = await self._grpc.answer(method, message, given)
        self._count("grpc", "error" if reply.status else "ok")
        return reply

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def _count(self, protocol: str, outcome: str) -> None:
        key = (protocol, outcome)
        self.answered[key] = self.answered.get(key, 0) + 1


def scope_of(names: str | None, endpoint: str | None) -> Scope:
    """Return the scope of a call by its headers.

    Args:
        names: Value of the header with the pools in sight.
        endpoint: Value of the header with one replica's id.
    """
    listed = None if names in {None, "*"} else frozenset(str(names)[:MAX_NAMES].split(","))
    return Scope(listed, (endpoint or "")[:256])


# --- HTTP -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serve_http(
    calls: GatewayCalls,
    address: str,
    secured: Secured | None,
    on_refused: OnRefused,
    *,
    admin: bool,
    option: str,
    by_envoy: bool = False,
    grace_s: float = 1.0,
) -> AsyncIterator[str]:
    """Serve HTTP and yield the bound address.

    At the end new calls are refused, and those that are open have ``grace_s`` seconds.

    Raises:
        CannotListenError: The address is in use or not local.
    """
    callers = Callers(secured, (_ANY_PATH,), admin=admin, by_envoy=by_envoy)

    async def handle(request: web.Request) -> web.StreamResponse:
        if callers.policy is not None and (reason := _refused(request, callers, on_refused)):
            return web.Response(status=403, text=f"{reason}\n")
        body = await request.read()
        path = request.raw_path.partition("?")[0]
        headers = request.headers
        scope = scope_of(headers.get(IN_SIGHT_HEADER), headers.get(ENDPOINT_HEADER))
        reply = await calls.http(HttpQuestion(request.method, path, body), scope, admin=admin)
        answer = _response(reply)
        if callers.policy is not None:
            answer.force_close()
        return answer

    app = web.Application(client_max_size=MAX_CHANGE if admin else MAX_QUESTION)
    app.router.add_get("/healthz", _healthy, allow_head=False)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=grace_s)
    await runner.setup()
    host, _, port = address.rpartition(":")
    context = None if secured is None else secured.context(["http/1.1"])
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port), ssl_context=context).start()
        except OSError as error:
            raise CannotListenError(_cannot(address, option, error)) from error
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _refused(request: web.Request, callers: Callers, on_refused: OnRefused) -> str | None:
    if request.transport is None:
        return "the connection is gone"
    peer = peer_of(request.transport)
    reason = callers.refusal(_ANY_PATH, peer)
    if reason is None:
        named = request.headers.getall(NAMES_HEADER, ())
        reason = callers.clients_refusal(_ANY_PATH, peer, ",".join(named))
    if reason is not None:
        on_refused(str(request.remote), peer, reason)
    return reason


def _response(reply: HttpReply) -> web.Response:
    headers = {}
    if reply.content_type:
        headers["content-type"] = reply.content_type
    if reply.note:
        headers[REPLICAS_HEADER] = reply.note
    if reply.reason:
        headers[REASON_HEADER] = reply.reason
    return web.Response(status=reply.status, body=reply.body, headers=headers)


def _cannot(address: str, option: str, error: Exception) -> str:
    why = getattr(error, "strerror", None) or error
    return f"cannot listen on {address}: {why}; choose another with --{option}"


# --- gRPC -------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serve_grpc(
    calls: GatewayCalls,
    address: str,
    secured: Secured | None,
    on_refused: OnRefused,
    *,
    admin: bool,
    option: str,
    by_envoy: bool = False,
    grace_s: float = 1.0,
) -> AsyncIterator[str]:
    """Serve gRPC and yield the bound address; end and errors are as of ``serve_http``."""
    paths = (HEALTH, *STREAMS, *(SERVICE + each for each in calls.questions))
    if admin:
        paths = (*paths, *(SERVICE + each for each in METHODS))
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", MAX_CHANGE if admin else MAX_QUESTION),
            ("grpc.so_reuseport", 0),
        )
    )
    callers = Callers(secured, paths, admin=admin, by_envoy=by_envoy, open_=(HEALTH,))
    handlers: Any = guarded(server, callers.policy, on_refused)
    handlers.add_generic_rpc_handlers((_Handlers(calls, frozenset(paths), callers, on_refused),))
    try:
        port = add_port(server, address, secured)
    except RuntimeError as error:
        raise CannotListenError(_cannot(address, option, error)) from error
    await server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(grace_s)


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of each call by its path."""

    def __init__(
        self,
        calls: GatewayCalls,
        paths: frozenset[str],
        callers: Callers,
        on_refused: OnRefused,
    ) -> None:
        self._calls = calls
        self._paths = paths
        self._callers = callers
        self._on_refused = on_refused

    async def _admit(self, path: str, context: Any) -> None:
        """End a call that an Envoy makes for a client without the role."""
        if not self._callers.for_clients:
            return
        peer = peer_in(context)
        sent = [value for key, value in context.invocation_metadata() or () if key == NAMES_HEADER]
        named = ",".join(each for each in sent if isinstance(each, str))
        reason = self._callers.clients_refusal(path, peer, named)
        if reason is not None:
            self._on_refused(str(context.peer()), peer, reason)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; ``None`` = it is not known."""
        path = str(details.method)
        if path not in self._paths:
            return None
        if path in REFLECTIONS:

            async def reflect(_: Any, context: Any) -> None:
                await self._admit(path, context)
                await self._calls.streams.reflect(path, context)

            return grpc.stream_stream_rpc_method_handler(reflect)
        if path == WATCH:

            async def watch(message: bytes, context: Any) -> None:
                await self._admit(path, context)
                await self._calls.streams.watch(message, context, _scope_in(context))

            return grpc.unary_stream_rpc_method_handler(watch)

        async def handle(message: bytes, context: Any) -> bytes:
            await self._admit(path, context)
            scope = _scope_in(context)
            reply = await self._calls.grpc(path, message, scope, context.time_remaining())
            if reply.note:
                context.set_trailing_metadata(((REPLICAS_HEADER, reply.note),))
            if reply.status:
                await context.abort(
                    _CODES.get(reply.status, grpc.StatusCode.UNKNOWN),
                    reply.details,
                    ((REPLICAS_HEADER, reply.note),) if reply.note else (),
                )
            return reply.message

        return grpc.unary_unary_rpc_method_handler(handle)


def _scope_in(context: Any) -> Scope:
    sent = dict(context.invocation_metadata() or ())
    return scope_of(sent.get(IN_SIGHT_HEADER), sent.get(ENDPOINT_HEADER))
