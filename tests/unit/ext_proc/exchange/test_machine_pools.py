"""The pool and the variant of an exchange."""

from __future__ import annotations

import struct
from dataclasses import replace

from tritonclient.grpc import service_pb2

from ext_proc.exchange import Body, BodyModeOverride, BodySending, ExchangeState
from support.exchanges import grpc, head, run, unnamed
from support.streams import GRPC_LIVE, GRPC_STREAM, llm, replicas, router, vision


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


def test_a_call_about_a_model_that_no_pool_serves_is_answered_by_a_replica():
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
