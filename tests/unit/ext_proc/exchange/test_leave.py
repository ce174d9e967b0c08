"""A request whose replica is found hung leaves it, if the law of retries allows."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body, Response, ResponsePart
from ext_proc.exchange.refusals import is_move
from support.exchanges import PROMPT, generic, grpc, head, run, unnamed
from support.streams import GRPC_INFER, GRPC_STREAM, frame, llm, router
from tidegate_api.names import AGAIN_HEADER

WHOLE = Body(PROMPT, end_of_stream=True)
PART = Body(PROMPT, end_of_stream=False)
AGAIN = {AGAIN_HEADER: "1"}


def left(event, body, *, read_before=False, mute=True, **pool):
    """Decide on a request, let it leave, and return the answer."""
    exchange, _ = run(router(llm(**pool)), *([event, body] if body else [event]))
    return exchange.leave(1.5, read_before=read_before, mute=mute)


def test_a_whole_request_is_taken_to_another_replica():
    """The answer is for the proxy, which does not send it."""
    answer = left(head(), WHOLE, mute=False)
    assert is_move(answer)
    assert (answer.status, answer.reason) == (503, "hung-replica")


@pytest.mark.parametrize(
    ("event", "body", "told"),
    [
        (head(), PART, {}),
        (head(headers=AGAIN), WHOLE, {}),
        (head(), WHOLE, {"read_before": True}),
        (head(), WHOLE, {"hung_requests": "refuse"}),
        (head(), WHOLE, {"move_bytes": len(PROMPT) - 1}),
        (head(end_of_stream=True), None, {"move_bytes": 0}),
    ],
    ids=["a part", "moved before", "read before", "refuse", "too long", "nothing"],
)
def test_what_no_other_replica_may_get_is_refused_by_a_mute_one(event, body, told):
    """One that answers probes may still answer the request, so it keeps it."""
    assert left(event, body, mute=False, **told) is None
    answer = left(event, body, **told)
    assert not is_move(answer)
    assert dict(answer.headers)["retry-after"] == "1"


@pytest.mark.parametrize(
    ("event", "body", "pool"),
    [
        (head(), WHOLE, {"hung_requests": "wait"}),
        (grpc(GRPC_STREAM), None, {}),
        (generic(), WHOLE, {}),
    ],
    ids=["wait", "gRPC stream", "generic proxy"],
)
def test_others_stay(event, body, pool):
    """They wait for their replica, as they did before."""
    assert left(event, body, **pool) is None


def test_an_answer_that_has_begun_keeps_its_request():
    """A part of a response was seen."""
    exchange, _ = run(router(llm()), head(), WHOLE)
    exchange.on(Response(ResponsePart.HEADERS), 1.0, 1.0)
    assert exchange.leave(1.5, read_before=False, mute=True) is None


def test_a_caller_over_grpc_gets_a_status():
    """UNAVAILABLE, with the reason."""
    sent = {"headers": {"content-type": "application/grpc"}}
    answer = left(unnamed(GRPC_INFER, **sent), Body(frame("toy-llm"), end_of_stream=True))
    assert (answer.grpc_status, is_move(answer)) == (14, True)
