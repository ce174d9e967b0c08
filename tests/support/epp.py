"""Requests to a picker over a real channel, as Envoy sends them in each body mode."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import grpc

from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Outcome
from support.peer import PATIENCE_S, Peer
from support.streams import GRPC_INFER, INFER_PATH, MODE, Answer, Messages, llm, replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.router import Router
    from ext_proc.routing.values.pool import Pool

Mode = Literal["none", "peek", "buffered", "streamed", "duplex"]
MODES: tuple[Mode, ...] = ("none", "peek", "buffered", "streamed", "duplex")
SEEING: tuple[Mode, ...] = ("peek", "buffered", "duplex")
"""Modes in which the body is read before the decision."""

ANNOUNCED = {
    "none": MODE.NONE,
    "peek": MODE.NONE,
    "buffered": MODE.BUFFERED,
    "streamed": MODE.STREAMED,
    "duplex": MODE.FULL_DUPLEX_STREAMED,
}
POOL_BODY = {
    "none": "none",
    "peek": "peek",
    "buffered": "full",
    "streamed": "full",
    "duplex": "peek",
}
"""Envoy's body mode -> ``body`` setting of the pool."""

PROMPT = b'{"text_input": "' + b"tell me about tides " * 60 + b'", "max_tokens": 100}'
CHAT = b'{"model": "toy-llm", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}'

FIRST, SECOND, THIRD = (f"10.0.0.{number}:8080" for number in (1, 2, 3))


def pool(mode: Mode, count: int = 3, **changes: Any) -> Pool:
    """Return the pool of a route with that body mode."""
    return llm(body=POOL_BODY[mode], endpoints=replicas(count), **changes)


def queued(
    request_router: Router, *queues: float, running: float | None = None, at: float | None = None
) -> None:
    """Report queued requests of each replica's page to the picker."""
    at = time.monotonic() if at is None else at
    for number, waiting in enumerate(queues, 1):
        request_router.registry.observe(
            f"r{number}", [Reading(at=at, queued=waiting, running=running)]
        )


def ended(mode: Mode) -> Outcome:
    """Return the outcome of a request whose stream ends without a response message.

    Of a generic proxy that sends headers only the picker cannot know whether it has ended.
    """
    return Outcome.UNSEEN if Proxy.generic and mode == "none" else Outcome.DONE


@dataclass
class Asked:
    """Replies of a picker to one request."""

    call: Any
    answers: list[Answer] = field(default_factory=list)
    upstream: bytes = b""
    """Body that Envoy forwards to the replica."""

    @property
    def decisive(self) -> Answer:
        """The only reply with a pick or a refusal."""
        (answer,) = [each for each in self.answers if _decides(each)]
        return answer

    @property
    def picked(self) -> list[str] | None:
        """The addresses of the pick."""
        return self.decisive.picked

    @property
    def refused(self) -> tuple[int, str]:
        """Status and reason of the refusal."""
        return self.decisive.status, self.decisive.reason


def _decides(answer: Answer) -> bool:
    if answer.kind == "immediate_response":
        return True
    return answer.kind in {"request_headers", "request_body"} and answer.picked is not None


class Proxy(Peer):
    """Envoy's side of the protocol, with its body modes."""

    generic: ClassVar[bool] = False
    """The control server did not configure it: its messages name no cluster or route of the fleet,
    and in ``peek`` it announces the first part of a body, which it need not let the picker ask for.
    """

    @classmethod
    def messages(
        cls, mode: Mode, protocol: str = "http", route: str | None = "llm/http"
    ) -> Messages:
        """Return a builder of one stream's messages."""
        if not cls.generic:
            return Messages(f"llm/stable/{protocol}", route, ANNOUNCED[mode])
        return Messages(None, None, cls.announced(mode))

    @classmethod
    def announced(cls, mode: Mode) -> int:
        """Return Envoy's mode."""
        return MODE.BUFFERED_PARTIAL if cls.generic and mode == "peek" else ANNOUNCED[mode]

    async def ask(
        self,
        mode: Mode,
        path: str = INFER_PATH,
        chunks: Sequence[bytes] = (),
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        route: str = "llm/http",
        subset: Any = None,
        trailers: bool = False,
    ) -> Asked:
        """Send a request up to the decision and the end of its body; the stream stays open."""
        protocol = "grpc" if path.startswith(GRPC_INFER[:20]) else "http"
        messages = self.messages(mode, protocol, route)
        if protocol == "grpc":
            headers = {"content-type": "application/grpc", **(headers or {})}
        messages.head(path, method, headers, end=not chunks and not trailers, subset=subset)
        asked = Asked(self.open())
        if mode == "duplex":
            self._add(messages, chunks, trailers=trailers)
            await self._in_duplex(asked, messages, ended=not chunks and not trailers)
            return asked
        reply = await self._say(asked, messages.bytes()[0])
        asked.upstream = b"".join(chunks)
        if reply is None or reply.kind == "immediate_response":
            return asked
        sending = self.announced(mode)
        if reply.message.HasField("mode_override"):
            sending = reply.message.mode_override.request_body_mode
        rest = Messages()
        if sending == MODE.STREAMED:
            self._add(rest, chunks, trailers=False)
        elif sending != MODE.NONE and chunks:
            rest.body(b"".join(chunks))
        for message in rest.bytes():
            reply = await self._say(asked, message)
            if reply is None or reply.kind == "immediate_response":
                break
        return asked

    @staticmethod
    def _add(messages: Messages, chunks: Sequence[bytes], *, trailers: bool) -> None:
        for number, chunk in enumerate(chunks, 1):
            messages.body(chunk, end=number == len(chunks) and not trailers)
        if trailers:
            messages.trailers()

    async def _say(self, asked: Asked, message: bytes) -> Answer | None:
        await asked.call.write(message)
        return await self._hear(asked)

    async def _hear(self, asked: Asked) -> Answer | None:
        data = await asyncio.wait_for(asked.call.read(), PATIENCE_S)
        if data is grpc.aio.EOF:
            return None
        asked.answers.append(Answer.of(data))
        return asked.answers[-1]

    async def _in_duplex(self, asked: Asked, messages: Messages, *, ended: bool) -> None:
        """Send without waiting for replies; the upstream body is what the picker returns."""
        for message in messages.bytes():
            await asked.call.write(message)
        while (reply := await self._hear(asked)) is not None:
            if reply.kind in {"immediate_response", "request_trailers"}:
                return
            if reply.kind == "request_headers" and ended:
                return
            if reply.kind == "request_body":
                streamed = reply.common.body_mutation.streamed_response
                asked.upstream += streamed.body
                if streamed.end_of_stream:
                    return
