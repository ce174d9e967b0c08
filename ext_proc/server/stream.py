"""One stream of Envoy without its transport: message bytes in, reply bytes out.

Rules:

1. ``answer`` takes the messages in order; ``end`` is called last and once.
2. Between ``answer`` and the caller's ``handed_over`` the reply of a decision may still be lost: a
   request that ends in this interval was not served.
3. Of a request that waits for a replica ``answer`` returns what asks the proxy to wait, and
   ``queued`` is true. ``when_released`` tells when it is decided; then ``released`` returns the
   replies. The next message is given to ``answer`` after that.
4. No message is kept: a long-lived stream would otherwise hold its body throughout.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ext_proc.exchange import (
    Exchange,
    Head,
    KeepWaiting,
    Lost,
    Refuse,
    ReplyBody,
    ReplyHead,
    Response,
    Stopped,
)
from ext_proc.exchange.known import USUAL
from ext_proc.exchange.machine import DECIDED, QUEUED, WAITING
from ext_proc.exchange.refusals import is_move
from ext_proc.observability.records import TRACEPARENT, RequestRecords
from ext_proc.requests.parsing.budget import FREE_BYTES
from ext_proc.routing.policies.base import HELD
from ext_proc.server.wire import event_of, parse_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from opentelemetry.trace import Span

    from ext_proc.exchange import Action, Event, ExchangeOptions, Pick
    from ext_proc.observability.metrics import Metrics
    from ext_proc.observability.tracing import Tracing
    from ext_proc.routing.router import Router
    from ext_proc.server.wire import Writer

    Loads = Sequence[tuple[str, str]]

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_WITH_PICK: Final = (ReplyHead, ReplyBody)


class Tools:
    """Dependencies that all streams share.

    Args:
        router: The request router.
        writer: Serializes replies.
        metrics: Counters to increment.
        on_loads: Receives a replica's id and the load-report headers of its response.
        tracing: Creates spans; ``None`` = tracing is off.
        refresh: Called before each message that may lead to a decision; ``None`` = nothing to do.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
        options: What all exchanges share.
        records: Keeps what became of requests; by default records of its own.
    """

    def __init__(
        self,
        router: Router,
        writer: Writer,
        metrics: Metrics,
        on_loads: Callable[[str, Loads], None],
        tracing: Tracing | None,
        refresh: Callable[[], None] | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        options: ExchangeOptions = USUAL,
        records: RequestRecords | None = None,
    ) -> None:
        self.router = router
        self.writer = writer
        self.metrics = metrics
        self.on_loads = on_loads
        self.tracing = tracing
        self.refresh = refresh
        self.clock = clock
        self.wall_clock = wall_clock
        self.options = options
        self.records = RequestRecords() if records is None else records
        self.running: dict[ExchangeStream, Callable[[bytes], Awaitable[None] | None]] = {}
        """The open streams, and what sends a message that is no reply on each."""


class ExchangeStream:
    """One stream: parses messages, measures and counts decisions, serializes replies.

    Args:
        tools: Dependencies that all streams share.
        trace: ``traceparent`` of the call, which a proxy that traces the request sends; it takes
            the place of the request's own. Empty = none.
    """

    __slots__ = (
        "_body_requested_at",
        "_decision_s",
        "_exchange",
        "_headers",
        "_queued_at",
        "_span",
        "_tools",
        "_trace_context",
        "client",
        "handing_over",
        "hold",
    )

    def __init__(self, tools: Tools, trace: str = "") -> None:
        self._tools = tools
        self._trace_context = trace
        self._exchange = Exchange(tools.router, tools.options)
        self.handing_over = False
        """The decision is made and its reply has not been written yet."""
        self._body_requested_at: float | None = None
        """Time at which the picker requested the body."""
        self._decision_s = 0.0
        self._headers = _NO_HEADERS
        """The request's headers, until the decision is made."""
        self._queued_at: float | None = None
        """When the request began to wait for a replica; ``None`` = it does not wait."""
        self._span: Span | None = None
        """Span of the decision, until the decision is made."""
        self.client: str | None = None
        """Who sent the request; ``None`` = unknown."""
        self.hold: tuple[tuple[str, str], float] | None = None
        """Group in which the last returned reply waits (pool and replica address), and for how many
        seconds; ``None`` = it does not wait."""

    def costly(self, data: bytes) -> bool:
        """Return whether reading a message may take more than a fraction of a millisecond."""
        headers = self._headers
        compressed = "content-encoding" in headers or "grpc-encoding" in headers
        return (len(data) > FREE_BYTES or compressed) and self._exchange.state is not DECIDED

    def answer(self, data: bytes) -> Sequence[bytes]:
        """Return the replies to a message.

        Raises:
            DecodeError: The bytes are not a message.
            WireError: The message has no part that this release knows.
            IllegalEventError: The message is not allowed in this state.
        """
        tools, exchange = self._tools, self._exchange
        begin = tools.clock()
        event = event_of(parse_request(data))
        if exchange.state is DECIDED:
            return self._answer_rest(event, begin)
        if tools.refresh is not None:
            tools.refresh()
        if isinstance(event, Head):
            self._headers = headers = event.headers
            self.client = event.client
            if self._trace_context:
                self._headers = headers = {**headers, TRACEPARENT: self._trace_context}
            if tools.tracing is not None:
                self._span = tools.tracing.begin(headers)
        actions = exchange.on(event, begin, tools.wall_clock())
        if exchange.state is QUEUED:
            self._queued_at = begin
            return [tools.writer.write(each) for each in actions if _asks(each)]
        now = tools.clock()
        self._decision_s += now - begin
        if exchange.state is not WAITING:
            self._count(actions, begin, now)
        elif self._body_requested_at is None:
            self._body_requested_at = now
        return list(map(tools.writer.write, actions))

    def _answer_rest(self, event: Event, now: float) -> Sequence[bytes]:
        """Return the replies to what comes after the decision."""
        tools, exchange = self._tools, self._exchange
        actions = exchange.on(event, now, tools.wall_clock())
        if isinstance(event, Response) and event.loads and exchange.endpoint is not None:
            tools.on_loads(exchange.endpoint, event.loads)
        return list(map(tools.writer.write, actions))

    @property
    def queued(self) -> bool:
        """Whether the request waits for a replica, or its replies were not taken yet."""
        return self._queued_at is not None

    def when_released(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the request that waits is decided; at once if it is."""
        self._exchange.when_released(call)

    def released(self) -> Sequence[bytes]:
        """Return the replies to a request that waited."""
        tools = self._tools
        begin = tools.clock()
        waited_s = begin - (self._queued_at or begin)
        self._queued_at = None
        in_line = self._exchange.in_line
        actions = self._exchange.released()
        if in_line:
            end = "refused" if isinstance(actions[0], Refuse) else "picked"
            tools.metrics.queued(end, waited_s, self._exchange.pool)
        now = tools.clock()
        self._decision_s += now - begin
        self._count(actions, begin, now)
        return list(map(tools.writer.write, actions))

    def failed(self) -> Sequence[bytes] | None:
        """Return the last replies of a stream that failed; ``None`` leaves it to the proxy."""
        refusal = self._exchange.fail()
        if refusal is None:
            return None
        self._tools.metrics.passed("failed")
        self._tools.metrics.refused(refusal.reason, self._exchange.pool)
        return (self._tools.writer.write(refusal),)

    def handed_over(self) -> None:
        """Record that all replies so far have been handed to the transport."""
        self.handing_over = False
        self.hold = None

    @property
    def ticket_id(self) -> int | None:
        """Number of the ticket of a request whose pick was handed over."""
        if self.handing_over or self.queued or (ticket := self._exchange.ticket) is None:
            return None
        return ticket.id

    def leave(self, *, read_before: bool, mute: bool) -> bytes | None:
        """Return what lets the request leave its replica, which is found hung.

        It is no reply to a message. See ``Exchange.leave``; ``None`` = the request stays.
        """
        exchange, tools = self._exchange, self._tools
        ticket = None if self.handing_over or self.queued else exchange.ticket
        if ticket is None:
            return None
        answer = exchange.leave(tools.clock(), read_before=read_before, mute=mute)
        if answer is None:
            return None
        tools.metrics.left_hung(ticket.pool, moved=is_move(answer))
        return tools.writer.write(answer)

    def end(self, *, stopped: bool) -> None:
        """Settle the exchange; ``stopped`` = the picker ended the stream."""
        tools = self._tools
        # A decision whose replies were not taken was not handed over.
        clean = not self.handing_over and self._queued_at is None
        event = Stopped() if stopped else Lost(clean)
        self._exchange.on(event, tools.clock(), tools.wall_clock())
        if self._queued_at is not None and self._exchange.in_line:
            waited_s = tools.clock() - self._queued_at
            tools.metrics.queued("left", waited_s, self._exchange.pool)
        if self._exchange.moved:
            tools.metrics.moved()
        if self._span is not None:
            self._span.end()

    def _count(self, actions: Sequence[Action], begin: float, now: float) -> None:
        """Count a decision, and the message that led to it from ``begin`` until ``now``."""
        exchange, tools = self._exchange, self._tools
        metrics, waited = tools.metrics, None
        self.handing_over = True
        metrics.took.observe("thinking", self._decision_s)
        if self._body_requested_at is not None:
            waited = begin - self._body_requested_at
            metrics.took.observe("waiting", waited)
        if exchange.unreadable is not None:
            metrics.unreadable()
        action, headers = actions[0], self._headers
        self._headers = _NO_HEADERS
        if exchange.passed is not None:
            metrics.passed(exchange.passed, exchange.pool)
        if isinstance(action, Refuse):
            metrics.refused(action.reason, exchange.pool)
            tools.records.refused(action, exchange.pool, headers, now)
        elif isinstance(action, _WITH_PICK) and (pick := action.pick) is not None:
            metrics.picked(pick)
            tools.records.picked(pick, headers, now)
            if pick.decision.reason == HELD:
                self._wait(pick)
        if self._span is not None:
            self._trace(self._span, action, waited)

    def _wait(self, pick: Pick) -> None:
        decision = pick.decision
        pool = self._tools.router.pools[decision.pool]
        self.hold = (decision.pool, decision.addresses[0]), pool.co_batch_hold_s

    def _trace(self, span: Span, action: Action, waited_s: float | None) -> None:
        self._span, tracing = None, self._tools.tracing
        answer: Pick | Refuse | None = action if isinstance(action, Refuse) else None
        if isinstance(action, _WITH_PICK):
            answer = action.pick
        if tracing is not None:
            tracing.decided(span, answer, self._exchange.passed, waited_s)


def _asks(action: Action) -> bool:
    """Return whether the proxy is told anything now."""
    return not isinstance(action, KeepWaiting) or action.ask_s is not None
