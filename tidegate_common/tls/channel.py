"""A client's channel whose certificate is renewed with its files.

Rules:

1. gRPC fixes a channel's credentials, so other files need another channel. A call that begins gets
   one with what is in force of the files then.
2. A channel that was replaced is closed once its calls had ``GRACE_S`` to end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from tidegate_common.tls import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidegate_common.tls.files import Material
    from tidegate_common.tls.rpc import ClientTls

    Options = Sequence[tuple[str, Any]]

GRACE_S: Final = 3600.0
"""Seconds, as long as servers keep a connection by default."""


def open_channel(address: str, tls: ClientTls | None, options: Options = ()) -> Any:
    """Return a ``grpc.aio`` channel, or what serves stubs as one: an async context manager.

    Args:
        address: ``host:port``, or those of several control servers (``servers``).
        tls: How to connect; ``None`` = without TLS.
        options: Options of gRPC.

    Raises:
        ValueError: Several addresses cannot be used together.
    """
    to, options = servers.target(address), (*options, *servers.options(address))
    if tls is None:
        return grpc.aio.insecure_channel(to, options=options)
    return RenewedChannel(to, tls, options)


class RenewedChannel:
    """The part of ``grpc.aio.Channel``'s interface that stubs use; see the module's rules.

    Args:
        address: ``host:port``.
        tls: How to connect.
        options: Options of gRPC.
    """

    def __init__(self, address: str, tls: ClientTls, options: Options = ()) -> None:
        self._address = address
        self._tls = tls
        self._options = (*options, *tls.options())
        self._material: Material | None = None
        self._channel: grpc.aio.Channel | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls."""
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    def unary_unary(self, *named: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that begins a call."""
        return self._begun("unary_unary", named, more)

    def unary_stream(self, *named: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that begins a call."""
        return self._begun("unary_stream", named, more)

    def stream_unary(self, *named: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that begins a call."""
        return self._begun("stream_unary", named, more)

    def stream_stream(self, *named: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that begins a call."""
        return self._begun("stream_stream", named, more)

    def _begun(self, kind: str, named: Sequence[Any], more: dict[str, Any]) -> Callable[..., Any]:
        def begin(*arguments: Any, **settings: Any) -> Any:
            return getattr(self._current(), kind)(*named, **more)(*arguments, **settings)

        return begin

    def _current(self) -> grpc.aio.Channel:
        held = self._tls.identity.material
        if self._channel is None or self._material is not held:
            if self._channel is not None:
                task = asyncio.create_task(_closed(self._channel))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            self._material = held
            self._channel = grpc.aio.secure_channel(
                self._address, self._tls.credentials(), options=self._options
            )
        return self._channel


async def _closed(channel: grpc.aio.Channel) -> None:
    await channel.close(GRACE_S)
