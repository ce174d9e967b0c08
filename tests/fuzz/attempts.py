"""What is fuzzed of the log's effect: entries of requests and attempts, applied to a router.

The bytes are messages of the log, each behind its length (two bytes, big-endian; the last one may
be short). Some requests run, so their tickets exist. Whatever the entries say: nothing is raised,
no charge is lost or made, and what is kept stays within its bounds.
"""

from __future__ import annotations

from typing import Final

import orjson
from google.protobuf.message import DecodeError

from ext_proc.feedback import attempts, wire
from ext_proc.feedback.entries import AttemptEntry, Judged
from ext_proc.feedback.fold import Feedback
from ext_proc.routing.state.abandoned import MAX_S
from ext_proc.routing.values.refusal import Refusal
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from ext_proc.workers.decode import Decoder
from ext_proc.workers.encode import Encoder
from ext_proc.workers.records import framed
from support.streams import llm, router

MAX_MESSAGES: Final = 64
RUNNING: Final = 4
"""Requests that run: tickets `x-1` and so on, those of ``LIFE``."""
LIFE: Final = "x-"
SECONDS_EACH: Final = 0.7
"""Time that passes between two messages."""


def one_stream(data: bytes) -> None:
    """Apply the messages in ``data``; raise if a promise breaks."""
    made = router(llm())
    judged: list[Judged] = []
    feedback = Feedback(made, picker="p", life=LIFE, on_judged=judged.append)
    tickets = []
    for number in range(RUNNING):
        body = b"%d" % (number // 2)
        request = Request("llm", None, "http", Features(Form.GENERATE), (1, 2, 3), body=body)
        decision = made.decide(request, 0.0, 0.0)
        assert not isinstance(decision, Refusal)
        assert decision.ticket is not None
        tickets.append(decision.ticket)
    now, at = 1.0, 0
    for _ in range(MAX_MESSAGES):
        if at >= len(data):
            break
        size = int.from_bytes(data[at : at + 2], "big")
        _apply(feedback, data[at + 2 : at + 2 + size], now)
        at, now = at + 2 + size, now + SECONDS_EACH
        made.suspicion.sweep(now)
        made.registry.sweep(now)
    assert len(feedback._failed) <= attempts.MAX_TICKETS
    assert all(len(each) <= attempts.MAX_ATTEMPTS for each in feedback._failed._of.values())
    assert len(made.suspicion.open) <= RUNNING
    orjson.dumps([feedback.state(), made.suspicion.deaths.describe(now)])
    _replicated(judged)
    for ticket in tickets:
        assert made.settle(ticket, Outcome.DONE, now)
    made.registry.sweep(now + MAX_S)  # by then abandoned work is over
    assert len(made.ledger) == 0


def _apply(feedback: Feedback, message: bytes, now: float) -> None:
    try:
        for entry in wire.entries_of(message):
            if isinstance(entry, AttemptEntry):
                feedback.attempted(entry, now)
            else:
                feedback.take(entry, now)
    except DecodeError:
        pass  # the service closes the stream


def _replicated(judged: list[Judged]) -> None:
    """Send judgements to a peer worker: it reads what was meant."""
    encoder = Encoder()
    for each in judged:
        encoder.put(each)
    assert list(Decoder().feed(framed(encoder.batch))) == judged
