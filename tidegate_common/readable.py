"""Handlers of a gRPC server whose callers may send bytes that are no message.

Rules:

1. A call with such bytes ends with INVALID_ARGUMENT. gRPC's own server says UNKNOWN, and logs a
   traceback for each.
2. Bytes are judged when the handler reads them, so a check of the caller comes first.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

REASON: Final = "the bytes are not a message of this method"
_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class UnreadableError(ValueError):
    """A caller's bytes are not a message; a handler lets it pass."""


class _Unreadable:
    """Stands for such bytes until the handler reads them."""


_UNREADABLE: Final = _Unreadable()


class ReadableServer:
    """Adds handlers to a server; see the module's rules.

    Args:
        server: A ``grpc.aio`` server, or what takes handlers in its place.
    """

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to serve."""
        self._server.add_generic_rpc_handlers(tuple(map(_Handlers, handlers)))

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: generated code calls this besides ``add_generic_rpc_handlers``."""


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, inner: grpc.GenericRpcHandler) -> None:
        self._inner = inner

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; ``None`` = not of this service."""
        found = self._inner.service(details)
        return None if found is None else _readable(found)


class _Context:
    """A call's context whose ``read`` raises ``UnreadableError``."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self) -> Any:
        """Return the next message."""
        return _read(await self._inner.read())


def _readable(handler: Any) -> Any:
    """Return a handler like this one, for any bytes."""
    if handler.request_deserializer is None:
        return handler
    kind = next(each for each in _KINDS if getattr(handler, each) is not None)
    run = getattr(handler, kind)
    streamed = kind.startswith("stream")

    def given(request: Any) -> Any:
        return _messages(request) if streamed else _read(request)

    async def generated(request: Any, context: Any) -> Any:
        try:
            async for each in run(given(request), _Context(context)):
                yield each
        except UnreadableError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, REASON)

    async def called(request: Any, context: Any) -> Any:
        try:
            return await run(given(request), _Context(context))
        except UnreadableError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, REASON)

    made = generated if inspect.isasyncgenfunction(run) else called
    return handler._replace(
        **{kind: made}, request_deserializer=_deserializer(handler.request_deserializer)
    )


def _deserializer(inner: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def deserialize(data: bytes) -> Any:
        try:
            return inner(data)
        except Exception:  # noqa: BLE001 - whatever a runtime of protobuf raises
            return _UNREADABLE

    return deserialize


def _read(message: Any) -> Any:
    if message is _UNREADABLE:
        raise UnreadableError(REASON)
    return message


async def _messages(found: Any) -> AsyncIterator[Any]:
    async for each in found:
        yield _read(each)
