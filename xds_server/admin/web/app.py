"""The admin API over HTTP/1.1 with JSON: the same calls, roles and errors as over gRPC.

Rules:

1. What reads is ``GET /v1/METHOD`` with arguments in the query, what changes is ``POST`` with a
   JSON object as its body. Browsers send neither for pages of other origins (``foreign``).
2. A failed call is answered with the HTTP status of its gRPC status, and a JSON object with
   ``code`` and ``message``.
3. Bounds: ``MAX_MESSAGE_BYTES`` of a body, ``BODY_S`` seconds in which it must have come, and
   ``MAX_CONCURRENT_CALLS`` at a time.
4. Over TLS a connection carries one request, so none outlives a certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import grpc
import structlog
from aiohttp import web
from google.protobuf import json_format

from tidegate_api.admin.v1 import admin_pb2
from tidegate_common.tls.contexts import peer_of
from tidegate_common.tls.roles import Peer
from tidegate_common.unix import SCHEME, UnixListener, connected_user, is_unix, path_of
from xds_server.admin.access.caller import CallEnded, CallOrigin
from xds_server.admin.server import MAX_CONCURRENT_CALLS, MAX_MESSAGE_BYTES
from xds_server.admin.web.openapi import (
    DOCUMENT_PATH,
    HTTP_STATUS,
    VERSION,
    document,
    methods,
    verb_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from google.protobuf.message import Message

    from tidegate_common.tls.settings import Secured
    from xds_server.admin.access.calls import Calls
    from xds_server.admin.service import AdminService

BODY_S: Final = 30.0
KEEPALIVE_S: Final = 15.0
MAX_MESSAGE_CHARS: Final = 1024
"""Longest message about a body that is no request."""
_JSON: Final = "application/json"
_log = structlog.get_logger(__name__)
_UNKNOWN_STATUS: Final = 500


class WebFace:
    """Serves an ``AdminService`` over HTTP; see the module's rules.

    Args:
        service: Serves operators.
        calls: Runs each call.
        secured: Identity of TCP ports; ``None`` = no TLS.
        group: Id of the group that may open Unix sockets; ``None`` = the owner alone.
        names: Host names by which clients may call the server.
    """

    def __init__(
        self,
        service: AdminService,
        calls: Calls,
        secured: Secured | None = None,
        group: int | None = None,
        names: Collection[str] = (),
    ) -> None:
        self._service = service
        self._calls = calls
        self._secured = secured
        self._group = group
        self._names = frozenset(each.lower() for each in names)
        self._running = 0
        self._document = json.dumps(document(), indent=1)

    def serve(self, address: str) -> contextlib.AbstractAsyncContextManager[str]:
        """Serve at an address; as ``served``."""
        return served(self.app(), address, self._secured, self._group)

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=MAX_MESSAGE_BYTES, middlewares=[self._answered])
        app.router.add_get(DOCUMENT_PATH, self._described)
        for path, rpc in methods().items():
            add = app.router.add_post if verb_of(rpc) == "POST" else app.router.add_get
            add(path, self._handler(rpc))
        return app

    @web.middleware
    async def _answered(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer every request with JSON, whatever becomes of it."""
        headers = request.headers
        reason = foreign(
            headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"), self._names
        )
        answer: web.StreamResponse
        if reason is not None:
            answer = failed(grpc.StatusCode.PERMISSION_DENIED, reason)
        else:
            try:
                answer = await handler(request)
            except CallEnded as ended:
                answer = failed(ended.code, ended.text)
            except web.HTTPException as error:
                answer = _plain(error)
            except Exception:  # noqa: BLE001 - no call may end without JSON; it is logged
                _log.exception("admin_call_failed", path=request.path[:80])
                answer = failed(grpc.StatusCode.INTERNAL, "an internal error; see the log")
        answer.headers["Cache-Control"] = "no-store"
        answer.headers["X-Content-Type-Options"] = "nosniff"
        if self._secured is not None:
            answer.force_close()
        return answer

    async def _described(self, _: web.Request) -> web.Response:
        return web.Response(text=self._document, content_type=_JSON)

    def _handler(self, rpc: str) -> Any:
        name = rpc.rpartition("/")[2]
        descriptor = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name[name]
        kind = getattr(admin_pb2, descriptor.input_type.name)
        method = getattr(self._service, name)

        async def handle(request: web.Request) -> web.Response:
            if self._running >= MAX_CONCURRENT_CALLS:
                raise CallEnded(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at a time")
            self._running += 1
            try:
                seen = await self._seen(request)
                answer = await self._calls.run(
                    rpc, kind(), seen, method, lambda message: _fill(message, request)
                )
            finally:
                self._running -= 1
            text = json_format.MessageToJson(
                answer,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            return web.Response(text=text, content_type=_JSON)

        return handle

    async def _seen(self, request: web.Request) -> CallOrigin:
        transport = request.transport
        if transport is None:
            raise CallEnded(grpc.StatusCode.UNAVAILABLE, "the connection is gone")
        authorization = request.headers.get("Authorization")
        if (remote := request.remote) and transport.get_extra_info("peername"):
            peer = Peer() if self._secured is None else peer_of(transport)
            return CallOrigin(
                f"http:{remote}",
                remote,
                peer,
                encrypted=self._secured is not None,
                authorization=authorization,
            )
        user = connected_user(transport.get_extra_info("socket"))
        return CallOrigin(
            f"http:uid {user.uid} pid {user.pid}",
            "",
            user=user,
            user_name=await asyncio.to_thread(lambda: user.name),
            authorization=authorization,
        )


async def _fill(message: Message, request: web.Request) -> None:
    """Read a request into a message.

    Raises:
        CallEnded: It is no request of this kind.
    """
    given: str | dict[str, Any]
    if request.method == "GET":
        given = {}
        for key, value in request.query.items():
            if key in given:
                raise CallEnded(grpc.StatusCode.INVALID_ARGUMENT, f"{key:.80} is there twice")
            given[key] = value
    else:
        given = await _body(request)
    try:
        if isinstance(given, str):
            json_format.Parse(given, message)
        else:
            json_format.ParseDict(given, message)
    except (json_format.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error) or "it is nested too deeply"
        raise CallEnded(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"this is no {message.DESCRIPTOR.name}: {reason:.{MAX_MESSAGE_CHARS}}",
        ) from None


async def _body(request: web.Request) -> str:
    if request.content_type != _JSON:
        raise CallEnded(
            grpc.StatusCode.INVALID_ARGUMENT, f"the body is JSON: send Content-Type: {_JSON}"
        )
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
        text = raw.decode()
    except TimeoutError:
        raise CallEnded(
            grpc.StatusCode.INVALID_ARGUMENT, f"the body did not come within {BODY_S:g} s"
        ) from None
    except UnicodeDecodeError:
        raise CallEnded(grpc.StatusCode.INVALID_ARGUMENT, "the body is no UTF-8") from None
    if not text.lstrip(" \t\r\n").startswith("{"):
        raise CallEnded(grpc.StatusCode.INVALID_ARGUMENT, "the body is a JSON object")
    return text


@contextlib.asynccontextmanager
async def served(
    app: web.Application, address: str, secured: Secured | None, group: int | None
) -> AsyncIterator[str]:
    """Serve at ``ip:port``, ``unix:PATH`` or ``local`` and yield the bound address.

    Args:
        app: The application.
        address: The address.
        secured: Identity of TCP ports; ``None`` = no TLS.
        group: Id of the group that may open Unix sockets; ``None`` = the owner alone.

    Raises:
        OSError: The address cannot be bound.
    """
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEPALIVE_S)
    await runner.setup()
    try:
        if is_unix(address):
            path = path_of(address)
            with contextlib.closing(UnixListener(path, group)) as listener:
                await web.SockSite(runner, listener.socket).start()
                yield f"{SCHEME}{path}"
                await runner.cleanup()
            return
        host, _, port = address.rpartition(":")
        context = None if secured is None else secured.context(["http/1.1"])
        await web.TCPSite(runner, host.strip("[]"), int(port), ssl_context=context).start()
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def failed(code: grpc.StatusCode, text: str) -> web.Response:
    """Return the answer to a call that failed."""
    status = HTTP_STATUS.get(code, _UNKNOWN_STATUS)
    headers = {"WWW-Authenticate": "Bearer"} if code is grpc.StatusCode.UNAUTHENTICATED else {}
    return web.json_response({"code": code.name, "message": text}, status=status, headers=headers)


def _plain(error: web.HTTPException) -> web.Response:
    """Return an answer of aiohttp's own, such as for a path that does not exist, as JSON."""
    codes = {404: "NOT_FOUND", 405: "UNIMPLEMENTED", 413: "RESOURCE_EXHAUSTED"}
    texts = {
        404: f"there is no such call; {DOCUMENT_PATH} lists those of {VERSION}",
        405: f"another method is needed; {DOCUMENT_PATH} names it",
        413: f"a request has at most {MAX_MESSAGE_BYTES} bytes",
    }
    code = codes.get(error.status, "INVALID_ARGUMENT")
    text = texts.get(error.status, error.reason)
    allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return web.json_response({"code": code, "message": text}, status=error.status, headers=allowed)


_OWN_SITES: Final = frozenset({"same-origin", "none"})
_SCHEMES: Final = ("http", "https")


def foreign(
    host: str | None, origin: str | None, site: str | None, names: Collection[str] = ()
) -> str | None:
    """Return why a request may not come from a browser, in one sentence; ``None`` if it may.

    A page of another site can let a browser send requests to addresses that only the browser's
    machine reaches, and can let its own name point to such an address (DNS rebinding). So only
    pages are let in that this server itself could serve:

    1. ``Host`` is an IP address, ``localhost`` or a name that the server was given. A page whose
       name was pointed here has another one.
    2. ``Origin``, if there is one, is that of ``Host``: only browsers send it.
    3. ``Sec-Fetch-Site``, if there is one, is ``same-origin`` or ``none``.

    Args:
        host: The header ``Host``.
        origin: The header ``Origin``; ``None`` = there is none.
        site: The header ``Sec-Fetch-Site``; ``None`` = there is none.
        names: Names besides ``localhost`` that may be the host, in lower case.
    """
    named = _host_of(f"//{host or ''}")
    if named is None or not (named == "localhost" or named in names or _is_address(named)):
        return "the host of the request is none of this server; --admin-host gives it another name"
    if origin is not None and origin not in {f"{scheme}://{host}" for scheme in _SCHEMES}:
        return "requests of pages of another origin are not taken"
    if site is not None and site not in _OWN_SITES:
        return "requests of pages of another site are not taken"
    return None


def _host_of(url: str) -> str | None:
    try:
        found = urlsplit(url)
        _ = found.port  # raises if it is no number
    except ValueError:
        return None
    if found.path or found.query or found.fragment or "@" in found.netloc:
        return None
    return found.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
