"""One stream of Envoy without its transport: bytes of a message in, bytes of replies out.

Law:

1. ``answer`` takes the messages in their order, ``end`` comes last and once.
2. Between ``answer`` and the caller's ``handed_over`` a decision is made whose reply may still be
   lost: who ends there was not served.
3. Nothing of a message is kept: what is open for long would hold its body all the time.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ext_proc.exchange import (
    Exchange,
    Head,
    Lost,
    Refuse,
    ReplyBody,
    ReplyHead,
    Response,
    Stopped,
)
from ext_proc.exchange.state import DECIDED, WAITING
from ext_proc.routing.policies.base import HELD
from ext_proc.server.wire import event_of, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.trace import Span

    from ext_proc.exchange import Action, Pick, RequestRouter
    from ext_proc.observability.metrics import Metrics
    from ext_proc.observability.tracing import Tracing
    from ext_proc.requests import Tokenizer
    from ext_proc.server.wire import Writer

    Loads = Sequence[tuple[str, str]]

NO_TOKENIZERS: Final[Mapping[str, Tokenizer]] = MappingProxyType({})


class Tools:
    """What every stream uses.

    Args:
        router: The router.
        tokenizers: Those at hand, by the path that pools name.
        writer: Writes replies.
        metrics: What to count on.
        on_loads: Takes a replica's id and the headers in which it told its load.
        tracing: Makes spans; ``None`` = nobody is traced.
        refresh: Called before a message that may be decided on; ``None`` where nothing needs it.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        router: RequestRouter,
        tokenizers: Mapping[str, Tokenizer],
        writer: Writer,
        metrics: Metrics,
        on_loads: Callable[[str, Loads], None],
        tracing: Tracing | None,
        refresh: Callable[[], None] | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.router = router
        self.tokenizers = tokenizers
        self.writer = writer
        self.metrics = metrics
        self.on_loads = on_loads
        self.tracing = tracing
        self.refresh = refresh
        self.clock = clock
        self.wall_clock = wall_clock


class ExchangeStream:
    """One stream: reads, times, counts, writes.

    Args:
        tools: What all of them use.
    """

    __slots__ = (
        "_asked_at",
        "_exchange",
        "_handing_over",
        "_span",
        "_thinking_s",
        "_tools",
        "hold",
    )

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._exchange = Exchange(tools.router, tools.tokenizers)
        self._handing_over = False
        """A decision is made and its reply is not written yet."""
        self._asked_at: float | None = None
        """When the body was asked for."""
        self._thinking_s = 0.0
        self._span: Span | None = None
        """Of the decision, until it is made."""
        self.hold: tuple[tuple[str, str], float] | None = None
        """With whom the reply that was just returned waits (pool and replica's address), and for
        how many seconds; ``None`` = it does not."""

    def answer(self, data: bytes) -> Sequence[bytes]:
        """Return the replies to a message.

        Raises:
            DecodeError: The bytes are no message.
            WireError: It carries nothing that this release knows.
            IllegalEventError: It cannot come here.
        """
        tools, exchange = self._tools, self._exchange
        begin = tools.clock()
        event = event_of(parse_request(data))
        undecided = exchange.state is not DECIDED
        if undecided and tools.refresh is not None:
            tools.refresh()
        if tools.tracing is not None and isinstance(event, Head):
            self._span = tools.tracing.begin(event.headers)
        actions = exchange.on(event, begin, tools.wall_clock())
        if undecided:
            self._count(actions, begin)
        elif isinstance(event, Response) and event.loads and exchange.endpoint is not None:
            tools.on_loads(exchange.endpoint, event.loads)
        if len(actions) == 1:
            return (tools.writer.write(actions[0]),)
        return [tools.writer.write(action) for action in actions]

    def handed_over(self) -> None:
        """Note that all replies so far are on their way."""
        self._handing_over = False
        self.hold = None

    def end(self, *, stopped: bool) -> None:
        """Settle, whatever has happened; ``stopped`` = the picker ended it."""
        tools = self._tools
        event = Stopped() if stopped else Lost(not self._handing_over)
        self._exchange.on(event, tools.clock(), tools.wall_clock())
        if self._exchange.moved:
            tools.metrics.moved()
        if self._span is not None:
            self._span.end()

    def _count(self, actions: tuple[Action, ...], begin: float) -> None:
        """Count what came of a message that could be decided on."""
        exchange, tools = self._exchange, self._tools
        metrics, now = tools.metrics, tools.clock()
        self._thinking_s += now - begin
        state = exchange.state
        if state is WAITING:
            if self._asked_at is None:
                self._asked_at = now
            return
        self._handing_over = state is DECIDED
        waited = None if self._asked_at is None else begin - self._asked_at
        metrics.took(self._thinking_s, waited)
        if exchange.unreadable is not None:
            metrics.unreadable()
        action = actions[0]
        if isinstance(action, Refuse):
            metrics.refused(action.reason)
        elif exchange.passed is not None:
            metrics.passed(exchange.passed)
        else:
            pick = _pick_of(action)
            if pick is not None:
                metrics.picked(pick)
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
        answer = action if isinstance(action, Refuse) else _pick_of(action)
        if tracing is not None:
            tracing.decided(span, answer, self._exchange.passed, waited_s)


def _pick_of(action: Action) -> Pick | None:
    if isinstance(action, ReplyHead):
        return action.pick
    return action.pick if isinstance(action, ReplyBody) else None
