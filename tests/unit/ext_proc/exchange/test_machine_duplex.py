"""Bodies in duplex: held until the decision, then passed through."""

from __future__ import annotations

import itertools

import pytest

from ext_proc.exchange import (
    Body,
    BodySending,
    Exchange,
    ExchangeState,
    PassThrough,
    ReplyBody,
    ReplyTrailers,
    Response,
    ResponsePart,
    Trailers,
)
from ext_proc.exchange.known import FIRST_PART_BYTES
from support.exchanges import PROMPT, grpc, head, run
from support.streams import GRPC_STREAM, frame, llm, router, vision


def test_duplex_chunks_are_passed_through():
    """In duplex a pass-through forwards a chunk; a large chunk is split, its last part ends it."""
    exchange, reply = run(router(llm(body="none")), head(request_body=BodySending.DUPLEX))
    assert reply.pick is not None
    (empty,) = exchange.on(Body(b"", end_of_stream=False), 1.0, 1.0)
    assert (empty.pass_through.chunk, empty.pass_through.end_of_stream) == (b"", False)
    chunk = bytes(range(256)) * 500
    actions = exchange.on(Body(chunk, end_of_stream=True), 1.0, 1.0)
    assert b"".join(action.pass_through.chunk for action in actions) == chunk
    assert [action.pass_through.end_of_stream for action in actions] == [False, False, True]


@pytest.mark.parametrize("cuts", [(), (1,), (4,), (5,), (9,), (3, 7, 11)])
def test_a_stream_in_duplex_is_decided_on_its_first_message(cuts):
    """However it is split: one decision when the first message is complete, before a half-close."""
    request_router = router(llm(default_for_grpc=True), vision())
    event = grpc(GRPC_STREAM, request_body=BodySending.DUPLEX).changed(route="unnamed/stream")
    exchange = Exchange(request_router)
    assert exchange.on(event, 1.0, 1.0) == ()
    message = frame("vision")
    edges = [0, *cuts, len(message)]
    chunks = [message[a:b] for a, b in itertools.pairwise(edges)]
    for chunk in chunks[:-1]:
        assert exchange.on(Body(chunk, end_of_stream=False), 1.0, 1.0) == ()
        assert exchange.state is ExchangeState.WAITING
    reply, passed = exchange.on(Body(chunks[-1], end_of_stream=False), 1.0, 1.0)
    assert reply.pick.decision.pool == "vision"
    assert reply.pick.clear_route_cache
    assert (passed.pass_through.chunk, passed.pass_through.end_of_stream, passed.pick) == (
        message,
        False,
        None,
    )
    (after,) = exchange.on(Body(b"more", end_of_stream=True), 1.0, 1.0)
    assert (after.pass_through.chunk, after.pass_through.end_of_stream) == (b"more", True)


def test_a_sequence_in_duplex_is_read_from_the_first_message():
    """Both streams of one sequence go to one replica, although no header names it."""
    request_router = router(llm())
    event = grpc(GRPC_STREAM, request_body=BodySending.DUPLEX)
    picks = set()
    for _ in range(6):
        exchange = Exchange(request_router)
        exchange.on(event, 1.0, 1.0)
        reply, _ = exchange.on(Body(frame("toy-llm", sequence=77), end_of_stream=False), 1.0, 1.0)
        picks.add(reply.pick.destination.partition(",")[0])
    assert dict(reply.pick.headers)["x-envoy-max-retries"] == "0"
    assert len(picks) == 1


def test_a_stream_in_duplex_without_messages_is_routed_by_its_head():
    """A client may half-close at once; that is a valid request."""
    request_router = router(llm())
    event = grpc(GRPC_STREAM, request_body=BodySending.DUPLEX).changed(route="unnamed/stream")
    for end, last in (
        (
            Body(b"", end_of_stream=True),
            ReplyBody(pass_through=PassThrough(b"", end_of_stream=True)),
        ),
        (Trailers(), ReplyTrailers()),
    ):
        exchange = Exchange(request_router)
        exchange.on(event, 1.0, 1.0)
        reply, *rest = exchange.on(end, 1.0, 1.0)
        assert reply.pick.decision.pool == "llm"
        assert rest == [last]


def test_trailers_end_a_duplex_body_that_is_held():
    """Trailers end the request: decide, forward the held chunks, answer the trailers."""
    exchange = Exchange(router(llm()))
    exchange.on(head(request_body=BodySending.DUPLEX), 1.0, 1.0)
    assert exchange.on(Body(PROMPT, end_of_stream=False), 1.0, 1.0) == ()
    reply, passed, last = exchange.on(Trailers(), 1.0, 1.0)
    assert reply.pick.prompt_blocks == 4
    assert passed.pass_through == PassThrough(PROMPT, end_of_stream=False)
    assert last == ReplyTrailers()


def test_what_a_duplex_decision_holds_is_bounded():
    """At the bound the decision is made, although the message is longer; nothing is lost."""
    exchange = Exchange(router(llm()))
    exchange.on(grpc(GRPC_STREAM, request_body=BodySending.DUPLEX), 1.0, 1.0)
    first = frame("toy-llm", tensor=10**6)
    sent, actions = 0, ()
    while not actions:
        assert sent < FIRST_PART_BYTES
        actions = exchange.on(Body(first[sent : sent + 1000], end_of_stream=False), 1.0, 1.0)
        sent += 1000
    assert sent - 1000 < FIRST_PART_BYTES <= sent
    assert b"".join(action.pass_through.chunk for action in actions[1:]) == first[:sent]


def test_a_bad_first_message_in_duplex_is_one_refusal():
    """Only the body names the pool and cannot be read: 400, and nothing is passed through."""
    event = grpc(GRPC_STREAM, request_body=BodySending.DUPLEX).changed(route="unnamed/stream")
    exchange = Exchange(router(llm()))
    exchange.on(event, 1.0, 1.0)
    (reply,) = exchange.on(Body(b"\x07\0\0\0\x01x", end_of_stream=False), 1.0, 1.0)
    assert (reply.status, reply.grpc_status) == (400, 3)


def test_the_subset_of_the_last_chunk_counts():
    """V78 in duplex: the metadata of the last body message is the one used."""
    exchange = Exchange(router(llm()))
    exchange.on(head(request_body=BodySending.DUPLEX, subset=frozenset({"10.0.0.1"})), 1.0, 1.0)
    exchange.on(Body(PROMPT[:9], end_of_stream=False, subset=frozenset({"10.0.0.3"})), 1.0, 1.0)
    last = Body(PROMPT[9:], end_of_stream=True, subset=frozenset({"10.0.0.2"}))
    assert exchange.on(last, 1.0, 1.0)[0].pick.destination == "10.0.0.2:8080"


def test_duplex_response_bodies_are_passed_through():
    """A response body in duplex is forwarded only by its pass-through."""
    exchange, _ = run(router(llm()), head(response_body=BodySending.DUPLEX, end_of_stream=True))
    (reply,) = exchange.on(Response(ResponsePart.BODY, b"x", end_of_stream=True), 1.0, 1.0)
    assert reply.pass_through.chunk == b"x"
