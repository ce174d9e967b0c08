"""The rules of the exchange, row by row."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from ext_proc.exchange import (
    Body,
    BodyModeOverride,
    BodySending,
    Exchange,
    ExchangeState,
    Head,
    IllegalEventError,
    Lost,
    PassThrough,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
    Response,
    ResponsePart,
    Stopped,
    Trailers,
)
from ext_proc.exchange.first_part import FIRST_PART_BYTES
from ext_proc.exchange.replies import MAX_PASS_THROUGH_BYTES
from ext_proc.routing.values.ticket import Outcome
from support.streams import (
    CHAT_PATH,
    GRPC_INFER,
    GRPC_LIVE,
    GRPC_STREAM,
    INFER_PATH,
    frame,
    llm,
    replicas,
    router,
    vision,
)

PROMPT = b'{"text_input": "' + b"tell me about tides " * 60 + b'"}'


def head(path=INFER_PATH, *, method="POST", cluster="llm/stable/http", route="llm/http", **rest):
    return Head(
        method,
        path,
        rest.pop("headers", {}),
        end_of_stream=rest.pop("end_of_stream", False),
        cluster=cluster,
        route=route,
        **rest,
    )


def unnamed(path=CHAT_PATH, *, cluster="llm/stable/http", **rest):
    return head(path, cluster=cluster, route="unnamed/x", **rest)


def grpc(path=GRPC_INFER, **rest):
    headers = {"content-type": "application/grpc", **rest.pop("headers", {})}
    return head(path, cluster="llm/stable/grpc", headers=headers, **rest)


def run(request_router, *events):
    """Feed events; return the exchange and the last event's only action."""
    exchange = Exchange(request_router)
    actions = ()
    for event in events:
        actions = exchange.on(event, 1.0, 1000.0)
    return exchange, actions[0]


def in_flight(request_router):
    return sum(request_router.registry.in_flight().values())


# --- when the decision falls --------------------------------------------------------------------


def test_peek_requests_the_first_part():
    """Nothing is announced and the pool peeks: the reply requests the body and has no pick."""
    exchange, reply = run(router(llm()), head())
    assert reply == ReplyHead(override=BodyModeOverride.FIRST_PART)
    assert exchange.state is ExchangeState.WAITING


def test_peek_decides_on_the_body():
    """The first body message brings the pick, with the prompt's blocks."""
    _, reply = run(router(llm()), head(), Body(PROMPT, end_of_stream=True))
    assert isinstance(reply, ReplyBody)
    assert reply.pick.prompt_blocks == 4
    assert len(reply.pick.destination.split(",")) == 3


def test_a_partial_body_is_enough():
    """A first part that ends in the middle of the prompt still gives blocks."""
    _, reply = run(router(llm()), head(), Body(PROMPT[:700], end_of_stream=False))
    assert reply.pick.prompt_blocks == 2


@pytest.mark.parametrize(
    ("whole", "switched_on", "body"),
    [(True, True, PROMPT), (True, False, None), (False, True, None)],
)
def test_the_router_gets_whole_bodies_only(monkeypatch, whole, switched_on, body):
    """A part of a body identifies no request, and the proxy cannot repeat what it cuts."""
    request_router = router(llm(refuse_deadly=switched_on))
    seen = []
    decide = request_router.decide
    monkeypatch.setattr(
        request_router,
        "decide",
        lambda request, *times: (seen.append(request), decide(request, *times))[1],
    )
    run(request_router, head(), Body(PROMPT, end_of_stream=whole))
    assert [(each.body, each.repeatable) for each in seen] == [(body, whole)]


def test_a_pools_tokenizer_cuts_its_prompts():
    """If the pool's tokenizer is loaded, blocks consist of tokens."""
    llm_with_one = llm(tokenizer="/t.json", block_tokens=16)

    class Words:
        def encode(self, text):
            return [len(word) for word in text.split()]

    exchange = Exchange(router(llm_with_one), {"/t.json": Words()})
    exchange.on(head(), 1.0, 1000.0)
    (reply,) = exchange.on(Body(PROMPT, end_of_stream=True), 1.0, 1000.0)
    assert (reply.pick.prompt_blocks, reply.pick.prompt_tokens) == (15, 240)
    _, reply = run(router(llm_with_one), head(), Body(PROMPT, end_of_stream=True))
    assert reply.pick.prompt_blocks == 4


def test_buffered_waits_without_asking():
    """An announced buffered body is waited for with a plain reply."""
    event = head(request_body=BodySending.BUFFERED)
    exchange, reply = run(router(llm(body="full")), event)
    assert reply == ReplyHead()
    assert exchange.state is ExchangeState.WAITING


@pytest.mark.parametrize(
    "event",
    [
        head(end_of_stream=True),
        head("/v2/models/toy-llm/ready", method="GET", end_of_stream=True),
        head("/v2/models/toy-llm/config"),
        grpc(GRPC_STREAM),
        grpc(GRPC_LIVE),
        head(request_body=BodySending.STREAMED),
        grpc(GRPC_STREAM, request_body=BodySending.STREAMED),
        head("/v2/models/toy-llm/config", request_body=BodySending.DUPLEX),
    ],
    ids=[
        "no-body",
        "get",
        "other",
        "stream",
        "live",
        "streamed",
        "streamed-stream",
        "duplex-other",
    ],
)
def test_decides_at_the_head(event):
    """If the body cannot add information, or would come too late, the headers decide (V46)."""
    exchange, reply = run(router(llm()), event)
    assert exchange.state is ExchangeState.DECIDED
    assert reply.pick is not None
    assert reply.override is None


def test_a_pool_without_bodies_decides_at_the_head():
    """Pools in mode none never request a body."""
    _, reply = run(router(llm(body="none")), head())
    assert reply.pick is not None


@pytest.mark.parametrize("event", [grpc(GRPC_STREAM), head("/v2/models/toy-llm/config")])
def test_an_unwanted_buffered_body_is_called_off(event):
    """A buffered body that is not read is not waited for: a stream's body would never end."""
    _, reply = run(router(llm(body="full")), event.changed(request_body=BodySending.BUFFERED))
    assert reply.pick is not None
    assert reply.override is BodyModeOverride.NOTHING


# --- the pool and the variant ---------------------------------------------------------------------


def test_an_unnamed_route_takes_the_pool_from_the_body():
    """The body's model names the pool; the reply moves the request there and clears the route."""
    body = Body(b'{"model": "vision", "messages": []}', end_of_stream=True)
    _, reply = run(router(llm(), vision()), unnamed(), body)
    assert reply.pick.clear_route_cache
    assert dict(reply.pick.headers)["x-tidegate-pool"] == "vision"
    assert dict(reply.pick.headers)["x-tidegate-variant"] == "stable"
    assert reply.pick.destination == "10.0.0.20:8080"


def test_an_unnamed_route_that_was_right_is_kept():
    """The body confirms pool and variant of Envoy's cluster: nothing is cleared."""
    body = Body(b'{"model": "toy-llm", "messages": []}', end_of_stream=True)
    _, reply = run(router(llm(), vision()), unnamed(), body)
    assert not reply.pick.clear_route_cache
    assert "x-tidegate-pool" not in dict(reply.pick.headers)


def test_an_unnamed_route_reads_the_body_even_if_the_default_pool_does_not():
    """The default pool's mode none does not apply to a request whose pool is not known."""
    _, reply = run(router(llm(body="none"), vision()), unnamed())
    assert reply.override is BodyModeOverride.FIRST_PART


def test_an_unnamed_route_with_a_pool_header_follows_that_pool():
    """The headers name a pool in mode none, so they decide."""
    event = unnamed(headers={"tidegate-pool": "vision"})
    _, reply = run(router(llm(), vision(body="none")), event)
    assert reply.pick.destination == "10.0.0.20:8080"
    assert reply.pick.clear_route_cache


def test_an_unknown_pool_header_is_refused_at_the_head():
    """An unknown pool is 404 before any body is read."""
    _, reply = run(router(llm()), unnamed(headers={"tidegate-pool": "nope"}))
    assert (reply.status, reply.reason) == (404, "unknown-pool")


def test_an_unknown_model_is_refused():
    """Only the body names the pool, and no pool serves that model."""
    body = Body(b'{"model": "nope", "messages": []}', end_of_stream=True)
    _, reply = run(router(llm()), unnamed(), body)
    assert (reply.status, reply.reason) == (404, "unknown-model")


def test_a_stream_on_an_unnamed_route_goes_to_the_default_pool():
    """A stream's body cannot be waited for; without a name it belongs to the default pool."""
    event = grpc(GRPC_STREAM).changed(route="unnamed/grpc")
    _, reply = run(router(llm()), event)
    assert reply.pick.decision.pool == "llm"


def test_a_streamed_unnamed_request_goes_to_the_default_pool():
    """Streamed chunks come too late for a pool that only they name."""
    _, reply = run(router(llm()), unnamed(request_body=BodySending.STREAMED))
    assert reply.pick.decision.pool == "llm"
    _, refused = run(
        router(llm(default_for_paths=frozenset())), unnamed(request_body=BodySending.STREAMED)
    )
    assert refused.status == 404


def test_the_drawn_variant_is_kept():
    """The pick comes from the variant of Envoy's cluster."""
    _, reply = run(router(llm()), head(cluster="llm/canary/http", end_of_stream=True))
    assert reply.pick.destination == "10.0.0.9:8080"
    assert not reply.pick.clear_route_cache


def test_the_protocol_is_the_clusters():
    """A gRPC cluster gets gRPC addresses."""
    _, reply = run(router(llm()), grpc(GRPC_LIVE))
    assert all(address.endswith(":8081") for address in reply.pick.destination.split(","))


def test_a_started_sequence_has_one_address_and_no_retries():
    """Its state is in one replica, and Envoy must not try another."""
    event = grpc(GRPC_STREAM, headers={"tidegate-sequence-id": "7"})
    request_router = router(llm())
    _, reply = run(request_router, event)
    first, _, others = reply.pick.destination.partition(",")
    assert others
    assert dict(reply.pick.headers)["x-tidegate-reads"] == "0"
    for _ in range(5):
        _, again = run(request_router, event)
        assert again.pick.destination == first
        assert dict(again.pick.headers)["x-envoy-max-retries"] == "0"


def test_a_leased_sequence_leaves_the_drawn_variant():
    """The lease beats Envoy's draw: the reply names the lease's variant and clears the route."""
    request_router = router(llm())
    event = grpc(GRPC_STREAM, headers={"tidegate-sequence-id": "7"})
    run(request_router, event.changed(cluster="llm/canary/grpc"))
    _, reply = run(request_router, event)
    assert reply.pick.destination == "10.0.0.9:8081"
    assert dict(reply.pick.headers)["x-tidegate-variant"] == "canary"
    assert reply.pick.clear_route_cache


def test_the_session_header_reaches_the_router():
    """One session gets one variant wherever the picker draws it."""
    request_router = router(
        llm(),
        vision(
            variants=tuple(replace(v, weight=1, headers=()) for v in llm().variants),
            endpoints=replicas(1, base=20) + replicas(1, "canary", base=21),
        ),
    )
    body = Body(b'{"model": "vision", "messages": []}', end_of_stream=True)
    seen = {
        run(request_router, unnamed(headers={"x-session-id": "s"}), body)[1].pick.decision.variant
        for _ in range(20)
    }
    assert len(seen) == 1


def test_the_subset_of_the_last_message_counts():
    """V78: the subset of the body message replaces that of the headers."""
    first, last = frozenset({"10.0.0.1"}), frozenset({"10.0.0.2:8080"})
    body = Body(PROMPT, end_of_stream=True, subset=last)
    _, reply = run(router(llm()), head(subset=first), body)
    assert reply.pick.destination == "10.0.0.2:8080"
    _, kept = run(router(llm()), head(subset=first), body.changed(subset=None))
    assert kept.pick.destination == "10.0.0.1:8080"


# --- what goes wrong ------------------------------------------------------------------------------


def test_an_unreadable_body_goes_on_where_the_pool_is_known():
    """Triton's own error is better than ours; the pick has no prompt."""
    body = Body(b"no healthy upstream", end_of_stream=True)
    exchange, reply = run(router(llm()), head(), body)
    assert reply.pick.prompt_tokens is None
    assert exchange.unreadable is not None
    assert reply.pick.unreadable, "an error of the replica is no proof against it"


def test_an_unreadable_body_on_an_unnamed_route_is_a_bad_request():
    """V38: only the body names the pool, and it cannot be read."""
    body = Body(b"no healthy upstream", end_of_stream=True)
    _, reply = run(router(llm()), unnamed(), body)
    assert (reply.status, reply.reason) == (400, "bad-request")


TENSORS = "/v2/models/toy-llm/infer"
HUGE = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1099511627776], "data": [1]}]}'


def test_an_unsound_body_is_refused():
    """It could end a replica; nothing is charged."""
    request_router = router(llm())
    _, reply = run(request_router, head(TENSORS), Body(HUGE, end_of_stream=True))
    assert (reply.status, reply.reason) == (400, "bad-shape")
    assert in_flight(request_router) == 0


def test_an_unsound_body_goes_on_where_the_pool_passes_it():
    """Its answer is then the caller's fault."""
    body = Body(HUGE, end_of_stream=True)
    exchange, reply = run(router(llm(unsound_requests="pass")), head(TENSORS), body)
    assert reply.pick.unreadable
    assert exchange.unreadable is not None


@pytest.mark.parametrize(("mode", "status"), [("refuse", 400), ("pass", None)])
def test_of_an_unsound_call_the_pool_decides_that_it_names(mode, status):
    """The model of a gRPC call is read before its shapes are judged."""
    message = service_pb2.ModelInferRequest(model_name="toy-llm", raw_input_contents=[b""])
    message.inputs.add(name="x", datatype="INT32", shape=[2**62])
    data = message.SerializeToString()
    event = head(GRPC_INFER, cluster="llm/stable/grpc", route="unnamed/grpc")
    body = Body(struct.pack(">BI", 0, len(data)) + data, end_of_stream=True)
    _, reply = run(router(llm(unsound_requests=mode)), event, body)
    assert getattr(reply, "status", None) == status


def test_a_declared_size_above_the_bound_is_refused():
    """The body may be read in part, so nothing contradicts the shape."""
    part = Body(HUGE[:-5], end_of_stream=False)
    _, reply = run(router(llm()), head(TENSORS), part)
    assert (reply.status, reply.reason) == (400, "bad-shape")
    _, reply = run(router(llm(max_tensor_bytes=2**41)), head(TENSORS), part)
    assert reply.pick is not None


def test_more_tokens_than_the_pool_allows_are_refused():
    """At the bound a request is routed; 0 is no bound."""
    body = Body(b'{"text_input": "a", "max_tokens": 9}', end_of_stream=True)
    _, reply = run(router(llm(max_tokens=8)), head(), body)
    assert (reply.status, reply.reason) == (400, "too-many-tokens")
    for bound in (9, 0):
        _, reply = run(router(llm(max_tokens=bound)), head(), body)
        assert reply.pick is not None


@pytest.mark.parametrize(
    ("path", "size", "bound", "refused"),
    [
        (INFER_PATH, 7681, 7680, True),
        (INFER_PATH, 7680, 7680, False),
        (INFER_PATH, 50_000, 0, False),
        ("/v2/models/toy-llm/config", 7681, 7680, True),
        (CHAT_PATH, 50_000, 7680, False),
    ],
)
def test_headers_longer_than_triton_takes_are_refused(path, size, bound, refused):
    """Triton would close the connection, which looks like a failed replica."""
    event = head(path, end_of_stream=True, header_bytes=size)
    _, reply = run(router(llm(max_header_bytes=bound)), event)
    assert getattr(reply, "status", None) == (431 if refused else None)


def test_too_large_for_a_named_pool():
    """One byte above the bound of a pool that reads whole bodies is 413; at the bound it is not."""
    request_router = router(llm(body="full", max_body_bytes=len(PROMPT)))
    event = head(request_body=BodySending.BUFFERED)
    _, reply = run(request_router, event, Body(PROMPT, end_of_stream=True))
    assert reply.pick is not None
    _, refused = run(request_router, event, Body(PROMPT + b" ", end_of_stream=True))
    assert (refused.status, refused.reason) == (413, "too-large")


def test_too_large_for_a_pool_that_the_body_names():
    """The bound is that of the pool that the body names."""
    content = b'{"model": "vision", "messages": []}'
    request_router = router(llm(), vision(body="full", max_body_bytes=10))
    _, reply = run(request_router, unnamed(), Body(content, end_of_stream=True))
    assert reply.status == 413


def test_a_first_part_is_never_too_large():
    """The bound is for whole bodies; Envoy bounds the first part."""
    request_router = router(llm(max_body_bytes=10))
    _, reply = run(request_router, head(), Body(PROMPT, end_of_stream=False))
    assert reply.pick is not None


@pytest.mark.parametrize(
    ("request_router", "event", "why"),
    [
        (router(), head(), "no-pools"),
        (router(llm()), head(cluster=None), "no-cluster"),
        (router(llm()), head(cluster="tidegate-picker"), "no-cluster"),
        (router(llm()), head(cluster="gone/stable/http"), "unknown-cluster"),
    ],
)
def test_not_knowing_is_a_pass(request_router, event, why):
    """Without pools or a known cluster the proxy continues by itself, even if a body follows."""
    exchange, reply = run(request_router, event)
    assert reply == ReplyHead()
    assert exchange.passed == why
    assert exchange.on(Body(b"x", end_of_stream=True), 1.0, 1.0) == (ReplyBody(),)


def test_no_endpoints_is_a_refusal():
    """V16, V40: a known pool without a replica is 503, on the headers too."""
    _, reply = run(router(llm(endpoints=())), head(end_of_stream=True))
    assert (reply.status, reply.reason) == (503, "no-endpoints")
    assert ("retry-after", "1") in reply.headers


def test_an_empty_subset_is_a_refusal():
    """V23: a subset without a known replica leaves no candidate."""
    _, reply = run(router(llm()), head(end_of_stream=True, subset=frozenset()))
    assert reply.reason == "no-endpoints"


def test_saturated_is_429():
    """All replicas at their limit: 429, until one request has ended."""
    request_router = router(llm(endpoints=replicas(1), per_endpoint_in_flight=1))
    first, _ = run(request_router, head(end_of_stream=True))
    _, reply = run(request_router, head(end_of_stream=True))
    assert (reply.status, reply.reason) == (429, "saturated")
    first.on(Lost(clean=True), 2.0, 2.0)
    _, reply = run(request_router, head(end_of_stream=True))
    assert reply.pick is not None


# --- after the decision ---------------------------------------------------------------------------


def test_later_messages_get_empty_replies():
    """A duplicate end of stream, trailers and response parts never decide again."""
    request_router = router(llm())
    exchange, _ = run(request_router, head(), Body(PROMPT, end_of_stream=True))
    assert exchange.on(Body(b"", end_of_stream=True), 1.0, 1.0) == (ReplyBody(),)
    assert exchange.on(Trailers(), 1.0, 1.0) == (ReplyTrailers(),)
    for part in ResponsePart:
        assert exchange.on(Response(part), 1.0, 1.0) == (ReplyResponse(part),)
    assert in_flight(request_router) == 1


@pytest.mark.parametrize("event", [Trailers(), Response(ResponsePart.HEADERS)])
def test_no_body_after_all_is_a_pass(event):
    """Trailers or a response arrive instead of the body: nothing is charged."""
    request_router = router(llm())
    exchange, _ = run(request_router, head(), event)
    assert exchange.state is ExchangeState.DECIDED
    assert exchange.passed == "no-body"
    assert in_flight(request_router) == 0


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


@pytest.mark.parametrize("part", [ResponsePart.HEADERS, ResponsePart.TRAILERS])
def test_the_replica_that_served_gets_the_charge(part):
    """V28: the proxy tried another replica; the ticket moves there, and settles there."""
    request_router = router(llm())
    exchange, reply = run(request_router, head(end_of_stream=True))
    pick, other, *_ = reply.pick.destination.split(",")
    names = {each.http: each.key.id for each in llm().endpoints}
    for served in (pick, "192.168.1.1:1", other):
        exchange.on(Response(part, served=served), 1.0, 1.0)
        assert exchange.moved is (served == other)
    assert request_router.registry.in_flight()[names[other]] == 1
    assert in_flight(request_router) == 1
    exchange.on(Lost(clean=True), 1.0, 1.0)
    assert in_flight(request_router) == 0
    assert request_router.ledger.outcomes == {Outcome.MOVED: 1, Outcome.DONE: 1}


def test_a_served_replica_without_a_ticket_is_nothing():
    """V29: a request that was never charged, or is settled, is not moved."""
    request_router = router(llm())
    exchange, _ = run(request_router, grpc(GRPC_LIVE))
    exchange.on(Response(ResponsePart.HEADERS, served="10.0.0.2:8081"), 1.0, 1.0)
    assert not exchange.moved
    exchange, _ = run(request_router, head(end_of_stream=True))
    request_router.set_pools({"vision": vision()}, 1.0)
    exchange.on(Response(ResponsePart.HEADERS, served="10.0.0.2:8080"), 1.0, 1.0)
    assert not exchange.moved
    assert in_flight(request_router) == 0


# --- the ticket -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (Lost(clean=True), Outcome.DONE),
        (Lost(clean=False), Outcome.ABORTED),
        (Stopped(), Outcome.SHUTDOWN),
    ],
)
def test_the_ticket_settles_at_the_end(end, outcome):
    """The end of the stream determines the outcome of the ticket."""
    request_router = router(llm())
    exchange, _ = run(request_router, head(), Body(PROMPT, end_of_stream=True))
    assert in_flight(request_router) == 1
    assert exchange.on(end, 2.0, 2.0) == ()
    assert in_flight(request_router) == 0
    assert request_router.ledger.outcomes[outcome] == 1
    assert exchange.state is ExchangeState.OVER


def test_a_client_that_leaves_before_the_body_charges_nobody():
    """Without a decision there is nothing to settle."""
    request_router = router(llm())
    exchange = Exchange(request_router)
    exchange.on(head(), 1.0, 1.0)
    exchange.on(Lost(clean=True), 1.0, 1.0)
    assert request_router.state(1.0)["counters"]["unmatched_settles"] == 0


def test_requests_that_are_not_inference_have_no_ticket():
    """A health call gets a pick but is not charged."""
    request_router = router(llm())
    _, reply = run(request_router, grpc(GRPC_LIVE))
    assert reply.pick.ticket is None
    assert in_flight(request_router) == 0


def test_pools_may_change_while_a_body_is_awaited():
    """A pool that was removed meanwhile leads to a refusal, not to an exception."""
    request_router = router(llm())
    exchange = Exchange(request_router)
    exchange.on(head(), 1.0, 1.0)
    request_router.set_pools({"vision": vision()}, 1.0)
    (reply,) = exchange.on(Body(PROMPT, end_of_stream=True), 1.0, 1.0)
    assert (reply.status, reply.reason) == (404, "unknown-pool")


# --- any order ------------------------------------------------------------------------------------

EVENTS = st.one_of(
    st.builds(
        Head,
        st.just("POST"),
        st.sampled_from([INFER_PATH, CHAT_PATH, GRPC_INFER, GRPC_STREAM, "/x"]),
        st.sampled_from([{}, {"tidegate-pool": "llm"}, {"content-type": "application/grpc"}]),
        end_of_stream=st.booleans(),
        cluster=st.sampled_from(["llm/stable/http", "llm/stable/grpc", "x", None]),
        route=st.sampled_from(["llm/http", "unnamed/grpc", None]),
        request_body=st.sampled_from(BodySending),
        response_body=st.sampled_from(BodySending),
    ),
    st.builds(
        Body,
        st.sampled_from([b"", PROMPT, b"\0\xff", b"{", b"\0" * 70_000, frame("toy-llm")]),
        st.booleans(),
        st.sampled_from([None, frozenset({"10.0.0.2"}), frozenset()]),
    ),
    st.builds(Trailers),
    st.builds(
        Response,
        st.sampled_from(ResponsePart),
        served=st.sampled_from([None, "10.0.0.2:8080", "nobody:1"]),
    ),
    st.builds(Lost, st.booleans()),
    st.builds(Stopped),
)
KIND = {Head: ReplyHead, Body: ReplyBody, Trailers: ReplyTrailers, Response: ReplyResponse}


class Book:
    """Checks replies as the proxy would: in duplex they may be late, but come in order and once."""

    def __init__(self):
        self.owed = []
        """Kinds of reply that are still to come."""
        self.held = self.passed_through = b""
        self.duplex = False
        self.over = False
        """Refused: nothing more is owed."""

    def sent(self, event):
        if isinstance(event, Head):
            self.duplex = event.request_body is BodySending.DUPLEX
        if isinstance(event, Body) and self.duplex:
            self.held += event.chunk
        self.owed.append(event)

    def got(self, actions):
        for action in actions:
            if isinstance(action, Refuse):
                self.over = True
                return
            if isinstance(action, ReplyBody) and self.duplex:
                assert len(action.pass_through.chunk) <= MAX_PASS_THROUGH_BYTES
                self.passed_through += action.pass_through.chunk
                while self.owed and isinstance(self.owed[0], Body):
                    self.owed.pop(0)
                continue
            while self.owed and isinstance(self.owed[0], Body) and self.duplex:
                assert self.owed.pop(0).chunk == b""
            assert isinstance(action, KIND[type(self.owed.pop(0))])


@given(st.lists(EVENTS, max_size=8))
def test_any_order_of_events(events):
    """Each message is answered in its kind, at most one pick; the ticket settles once.

    In duplex answers may wait for the decision, and what goes on is what came. Illegal events
    raise and change nothing.
    """
    request_router = router(llm())
    exchange = Exchange(request_router)
    book = Book()
    picks = refusals = 0
    for event in events:
        before = (exchange.state, in_flight(request_router))
        try:
            actions = exchange.on(event, 1.0, 1.0)
        except IllegalEventError:
            assert (exchange.state, in_flight(request_router)) == before
            legal = before[0] is not ExchangeState.OVER and isinstance(event, Head) == (
                before[0] is ExchangeState.NEW
            )
            assert not legal
            continue
        if isinstance(event, Lost | Stopped):
            assert actions == ()
            assert exchange.state is ExchangeState.OVER
            continue
        if book.over or isinstance(event, Response):
            continue
        book.sent(event)
        book.got(actions)
        if exchange.state is ExchangeState.DECIDED and not book.over and exchange.passed is None:
            assert book.passed_through == book.held
            assert not book.owed
        elif exchange.state is ExchangeState.WAITING and not book.duplex:
            assert not book.owed
        refusals += sum(isinstance(action, Refuse) for action in actions)
        picks += sum(getattr(action, "pick", None) is not None for action in actions)
    assert picks + refusals <= 1
    if exchange.state is not ExchangeState.OVER:
        exchange.on(Lost(clean=True), 1.0, 1.0)
    assert in_flight(request_router) == 0
    ends = request_router.ledger.outcomes
    assert ends.total() - ends[Outcome.MOVED] <= 1
    assert request_router.state(1.0)["counters"]["unmatched_settles"] == 0


GRPC_READY = "/inference.GRPCInferenceService/ModelReady"


def body_naming(name: str) -> Body:
    data = service_pb2.ModelReadyRequest(name=name).SerializeToString()
    return Body(struct.pack(">BI", 0, len(data)) + data, end_of_stream=True)


def test_a_call_about_a_model_goes_to_its_pool():
    """Only the body of ModelReady names the model: its pool gets the call, nothing is charged."""
    request_router = router(llm(), vision())
    event = grpc(GRPC_READY, route="unnamed/grpc")
    exchange, reply = run(request_router, event)
    assert (exchange.state, reply.override) == (ExchangeState.WAITING, BodyModeOverride.FIRST_PART)
    _, reply = run(request_router, event, body_naming("vision"))
    assert (reply.pick.decision.pool, reply.pick.ticket) == ("vision", None)


def test_a_call_about_a_model_that_nobody_serves_is_answered_by_a_replica():
    """Triton's ModelReady answers no; a refusal would be an error instead."""
    event = grpc(GRPC_READY, route="unnamed/grpc")
    _, reply = run(router(llm(), vision()), event, body_naming("nope"))
    assert reply.pick.decision.pool == "llm"


def test_a_call_about_a_model_is_not_read_where_its_pool_is_known():
    """A header that names the pool makes reading the body unnecessary."""
    _, reply = run(router(llm()), grpc(GRPC_READY))
    assert reply.pick.decision.pool == "llm"


def test_an_adapter_behind_the_model():
    """A model with an appended adapter goes to the pool of the model."""
    body = Body(b'{"model": "toy-llm:sql", "messages": []}', end_of_stream=True)
    _, reply = run(router(llm(), vision()), unnamed(), body)
    assert reply.pick.decision.pool == "llm"
