"""Envoy's side of the ext_proc protocol: a picker and a real channel to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Self

import grpc
from prometheus_client import CollectorRegistry

from ext_proc.exchange.known import USUAL
from ext_proc.observability.metrics import Metrics
from ext_proc.server.service import PickerServer
from ext_proc.server.wire import METHOD, SERVICE
from support.streams import Answer, Messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.exchange import ExchangeOptions
    from ext_proc.observability.tracing import Tracing
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.ticket import Outcome
    from ext_proc.settings import Transport

PATIENCE_S = 60.0
"""Time limit of a reply, seconds."""


class Peer:
    """A picker and a gRPC channel to it."""

    transport: ClassVar[Transport] = "grpc"
    """gRPC server of the picker; tests set it to run over each implementation."""

    def __init__(
        self,
        router: Router,
        on_loads: Callable[..., None] = lambda *_: None,
        tracing: Tracing | None = None,
        refresh: Callable[[], None] | None = None,
        options: ExchangeOptions = USUAL,
    ) -> None:
        self.router = router
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.server = PickerServer(
            router,
            picker="picker-1",
            metrics=metrics,
            on_loads=on_loads,
            tracing=tracing,
            refresh=refresh,
            transport=self.transport,
            options=options,
        )

    async def __aenter__(self) -> Self:
        self.address = await self.server.start("127.0.0.1:0")
        self.channel = grpc.aio.insecure_channel(
            self.address, options=[("grpc.max_send_message_length", -1)]
        )
        self._open = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0)

    def open(self, **metadata: str) -> Any:
        """Open a stream."""
        return self._open(metadata=tuple(metadata.items()))

    async def talk(self, messages: Messages, call: Any = None) -> tuple[Any, list[Answer]]:
        """Send messages; each one waits for the reply to the previous one."""
        call = call or self.open()
        answers = []
        for message in messages.bytes():
            await call.write(message)
            reply = await call.read()
            if reply is grpc.aio.EOF:
                break
            answers.append(Answer.of(reply))
        return call, answers

    async def finish(self, call: Any) -> grpc.StatusCode:
        """End the stream as Envoy does; return its status."""
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        return await call.code()

    def counted(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric of the picker."""
        return self.registry.get_sample_value(f"tidegate_picker_{name}", labels or None)

    async def settled(self, outcome: Outcome) -> None:
        """Wait until a ticket has ended with that outcome."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.router.ledger.outcomes[outcome]:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0)
        assert sum(self.router.registry.in_flight().values()) == 0
