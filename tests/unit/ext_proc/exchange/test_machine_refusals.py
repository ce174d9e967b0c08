"""What an exchange refuses, and where it passes a request without a pick."""

from __future__ import annotations

import gzip
import struct

import pytest
from tritonclient.grpc import service_pb2

from ext_proc.exchange import (
    Body,
    BodySending,
    Exchange,
    ExchangeOptions,
    Lost,
    Refuse,
    ReplyBody,
    ReplyHead,
    Response,
    ResponsePart,
    Trailers,
)
from support.exchanges import PROMPT, generic, grpc, head, in_flight, run, unnamed
from support.streams import CHAT_PATH, GRPC_INFER, INFER_PATH, llm, replicas, router, vision
from tidegate_api.names import MAX_RETRIES_HEADER

TENSORS = "/v2/models/toy-llm/infer"
HUGE = b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1099511627776], "data": [1]}]}'

# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [TENSORS, INFER_PATH])
def test_an_unreadable_body_does_not_reach_triton(path):
    """What Triton's own parser would make of it is not known; nothing is charged."""
    body = Body(b"no healthy upstream", end_of_stream=True)
    request_router = router(llm())
    exchange, reply = run(request_router, head(path), body)
    assert (reply.status, reply.reason) == (400, "bad-request")
    assert exchange.unreadable is not None
    assert in_flight(request_router) == 0


def test_an_unreadable_body_goes_on_where_the_pool_passes_it():
    """Triton's own error is better than ours; the pick has no prompt."""
    body = Body(b"no healthy upstream", end_of_stream=True)
    exchange, reply = run(router(llm(unsound_requests="pass")), head(), body)
    assert reply.pick.prompt_tokens is None
    assert exchange.unreadable is not None
    assert reply.pick.unreadable, "an error of the replica is no proof against it"


def test_an_unreadable_body_on_an_unnamed_route_is_a_bad_request():
    """V38: only the body names the pool, and it cannot be read."""
    body = Body(b"no healthy upstream", end_of_stream=True)
    _, reply = run(router(llm()), unnamed(), body)
    assert (reply.status, reply.reason) == (400, "bad-request")


def test_a_body_with_mistakes_goes_on():
    """It is known, and Triton's own error reaches the caller."""
    _, reply = run(router(llm()), head(TENSORS), Body(b"[NaN]", end_of_stream=True))
    assert reply.pick.unreadable


@pytest.mark.parametrize(
    "body",
    [
        Body(b'{"x": "' + b"x" * 70_000, end_of_stream=False),
        Body(b'{"inputs": [{"name": "x", "shape": [1', end_of_stream=False),
        Body(b'{"a": [NaN' + b",1" * 70_000 + b"]}", end_of_stream=True),
    ],
)
def test_a_body_beyond_the_bound_is_sent_once(body):
    """One replica may get it, and no list of others."""
    _, reply = run(router(llm(endpoints=replicas(3))), head(TENSORS), body)
    assert dict(reply.pick.headers)[MAX_RETRIES_HEADER] == "0"
    assert "," not in reply.pick.destination


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
        (router(llm()), head(cluster="gone/stable/http"), "unknown-cluster"),
    ],
)
def test_not_knowing_is_a_pass(request_router, event, why):
    """Without pools or a known cluster the proxy continues by itself, even if a body follows."""
    exchange, reply = run(request_router, event)
    assert reply == ReplyHead()
    assert exchange.passed == why
    assert exchange.on(Body(b"x", end_of_stream=True), 1.0, 1.0) == (ReplyBody(),)


# --- a pick is required ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_router", "event", "why"),
    [
        (router(), head(), "no-pools"),
        (router(llm()), head(cluster="gone/stable/http"), "unknown-cluster"),
        (router(llm(), vision()), generic("/", method="GET", end_of_stream=True), "no-pool"),
        (
            router(llm()),
            Body(b"", end_of_stream=True, head=generic(sent=BodySending.STREAMED)),
            "too-late",
        ),
    ],
)
def test_a_required_pick_turns_a_pass_into_503(request_router, event, why):
    """The refusal is in the caller's dialect and says when to try again."""
    exchange = Exchange(request_router, options=ExchangeOptions(require_pick=True))
    (reply,) = exchange.on(event, 1.0, 1000.0)
    assert (reply.status, reply.reason) == (503, "no-pick")
    assert ("retry-after", "1") in reply.headers
    assert exchange.passed == why


def test_a_required_pick_for_a_grpc_caller():
    """UNAVAILABLE, which clients retry."""
    exchange = Exchange(router(), options=ExchangeOptions(require_pick=True))
    (reply,) = exchange.on(grpc(), 1.0, 1000.0)
    assert reply.grpc_status == 14


def test_a_required_pick_whose_body_never_came():
    """Trailers in its place are refused; a response is the proxy's own and stays."""
    for event, refused in ((Trailers(), True), (Response(ResponsePart.HEADERS), False)):
        exchange = Exchange(router(llm()), options=ExchangeOptions(require_pick=True))
        exchange.on(head(), 1.0, 1000.0)
        (reply,) = exchange.on(event, 1.0, 1000.0)
        assert isinstance(reply, Refuse) is refused
        assert exchange.passed == "no-body"


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


@pytest.mark.parametrize(
    ("bound", "size", "cut", "refused"),
    [
        (2**20, 2**22, None, True),
        (2**26, 2**20, None, False),
        (0, 2**24, None, False),
        (2**26, 2**24, 1000, False),
        (2**20, 2**24, 1000, True),
    ],
)
def test_what_a_triton_would_inflate_too_far_is_refused(bound, size, cut, refused):
    """Of what was not read the worst is taken; 0 is no bound."""
    packed = gzip.compress(PROMPT + b" " * size)
    named = {"content-encoding": "gzip", "content-length": str(len(packed))}
    part = Body(packed[:cut], end_of_stream=cut is None)
    _, reply = run(router(llm(max_inflated_bytes=bound)), head(headers=named), part)
    assert (getattr(reply, "status", None), getattr(reply, "reason", None)) == (
        (413, "too-large") if refused else (None, None)
    )


def test_a_compressed_beginning_of_unknown_length_is_refused():
    """The rest of a chunked body may be a bomb. An engine would not inflate it."""
    named = {"content-encoding": "gzip"}
    part = Body(gzip.compress(PROMPT)[:-4], end_of_stream=False)
    _, reply = run(router(llm()), head(headers=named), part)
    assert (reply.status, reply.reason) == (413, "too-large")
    _, reply = run(router(llm()), head(CHAT_PATH, headers=named), part)
    assert reply.pick is not None


def test_a_compressed_message_of_grpc_is_bounded_too():
    """Its length is in the frame, so that the beginning says enough."""
    bomb = gzip.compress(bytes(2**27))
    message = struct.pack(">BI", 1, len(bomb)) + bomb
    event = grpc(headers={"grpc-encoding": "gzip"})
    _, reply = run(router(llm()), event, Body(message[:5000], end_of_stream=False))
    assert (reply.grpc_status, reply.reason) == (8, "too-large")
