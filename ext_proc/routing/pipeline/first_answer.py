"""How long the proxy waits for a replica's first sign before it tries another. Pure.

Rules:

1. The route has a bound on the time to the headers of an answer (``timeouts.first_answer``). Here
   it is shortened for a request whose answer is streamed: there the headers come with the first
   token at the latest; the time of other answers depends on their unknown length. Engines that send
   headers at once always keep it: Envoy has no bound on the time to the first token.
2. The bound is ``FACTOR`` times the larger of two values: the expected time of this prompt on the
   pick, behind the work before it, and the recent peak of the pick's times to the first byte, which
   rises with a queue. It is never below ``first_answer_least_s``.
3. Where either is unknown, nothing is shortened. gRPC streams have no bound: they may be idle.
4. Bounds are steps of 1.5, so that few different ones occur and replies can be cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.request import GRPC_STREAM

if TYPE_CHECKING:
    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.ticket import Ticket

FACTOR: Final = 5.0
STEP: Final = 1.5


def first_answer_s(
    context: SchedulingContext, picked: int, pool: Pool, ticket: Ticket | None
) -> float | None:
    """Return the bound for a request, ``None`` for the route's own.

    Args:
        context: The context of its decision.
        picked: Position of the pick among the candidates.
        pool: Its pool.
        ticket: Its ticket.
    """
    features = context.request.features
    if not features.streaming or ticket is None:
        return None
    least, most = pool.first_answer_least_s, pool.first_answer_s
    if not 0.0 < least < most:
        return None
    candidate = context.candidates[picked]
    expected = candidate.latency_model.expects(ticket.work + ticket.coming)
    served = candidate.replica.served.get(pool.name)
    peak = None if served is None else served.peak.value(context.now)
    if expected is None or peak is None or features.form is GRPC_STREAM:
        return None
    expected += ticket.drain_s or 0.0
    wanted = FACTOR * max(expected, peak)
    while least < wanted:
        least *= STEP
    return least if least < most else None
