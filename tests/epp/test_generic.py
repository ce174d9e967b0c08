"""Requests as gateways send them that know nothing of the fleet: rows of their own.

All rows of ``test_requests`` and ``test_exchanges`` run in this form too. The ids are those of
``docs/reference/vectors.md``.
"""

from __future__ import annotations

import json

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ext_proc.exchange import ExchangeOptions
from ext_proc.routing.values.ticket import Outcome
from support.epp import FIRST, SECOND, THIRD, Proxy
from support.peer import Peer
from support.streams import GRPC_INFER, MODE, Answer, Messages, frame, llm, replicas, router, vision

SUBSET = "x-gateway-destination-endpoint-subset"
STANDARD = {"hi": "mom", "x-request-id": "test-request-id"}
COMPLETION = json.dumps(
    {"max_tokens": 100, "model": "toy-llm", "prompt": "test1 " * 100, "temperature": 0}
).encode()


@pytest.fixture(params=["grpc", "nghttp2"], autouse=True)
def _over(request, monkeypatch):
    """Each transport."""
    monkeypatch.setattr(Peer, "transport", request.param)
    monkeypatch.setattr(Proxy, "generic", True)


def pool(**changes):
    """Return the only pool: it needs no mark to be the default, and lists no path."""
    values = {"paths": frozenset(), "default_for_paths": frozenset(), "default_for_http": True}
    return llm(endpoints=replicas(3), **{**values, **changes})


@pytest.mark.parametrize("path", ["/v1/completions", "/proxy/v1/completions", None])
@pytest.mark.parametrize("mode", ["peek", "buffered", "duplex"])
async def test_the_standard_request(mode, path):
    """V32, V36, V37: routed in each mode, in two chunks, also where the proxy sends no path."""
    async with Proxy(router(pool(), vision())) as proxy:
        call = proxy.open()
        messages = Proxy.messages(mode).head(path or "", headers=STANDARD)
        if path is None:
            del messages.made[0].request_headers.headers.headers[:2]
        if mode == "duplex":
            messages.body(COMPLETION[:25], end=False).body(COMPLETION[25:])
        else:
            messages.body(COMPLETION)
        for number, message in enumerate(messages.bytes()):
            await call.write(message)
            if mode != "duplex" and not number:
                assert Answer.of(await call.read()).picked is None
        answer = Answer.of(await call.read())
        assert set(answer.picked) == {FIRST, SECOND, THIRD}
        assert answer.message.dynamic_metadata["tidegate"]["pool"] == "llm"
        assert proxy.counted("prompt_blocks_total", part="all") >= 2


async def test_a_get_on_any_path():
    """V46: one header reply at once."""
    async with Proxy(router(pool())) as proxy:
        for path in ("/", "/v1/models", "/health"):
            result = await proxy.ask("duplex", path, method="GET")
            assert [each.kind for each in result.answers] == ["request_headers"]
            assert set(result.picked) == {FIRST, SECOND, THIRD}


async def test_an_unknown_model():
    """V44: a default pool that names its models does not take others; one that names none does."""
    body = [COMPLETION.replace(b"toy-llm", b"direct-model")]
    async with Proxy(router(pool())) as proxy:
        result = await proxy.ask("buffered", "/v1/completions", body)
        assert result.refused == (404, "unknown-model")
    async with Proxy(router(pool(models=frozenset()))) as proxy:
        result = await proxy.ask("buffered", "/v1/completions", body)
        assert result.picked is not None
        assert result.upstream == body[0]


@pytest.mark.parametrize("mode", ["none", "buffered", "duplex"])
async def test_one_destination(mode):
    """A cluster of type ORIGINAL_DST: the picker's operator or the proxy's metadata says so."""
    async with Proxy(router(pool()), options=ExchangeOptions(one_destination=True)) as proxy:
        result = await proxy.ask(mode, "/v1/completions", [COMPLETION])
        assert len(result.picked) == 1
    async with Proxy(router(pool())) as proxy:
        messages = Messages(None, None).head("/v1/models", "GET", end=True)
        space = messages.made[0].metadata_context.filter_metadata["tidegate"]
        space.update({"destinations": "one"})
        _, (answer,) = await proxy.talk(messages)
        assert len(answer.picked) == 1


@pytest.mark.parametrize(
    ("header", "metadata", "allowed"),
    [
        ("10.0.0.2:8080", None, {SECOND}),
        ("10.0.0.2", [SECOND, THIRD], {SECOND}),
        ("10.0.0.2:8080, 10.0.0.3:8080", [THIRD], {THIRD}),
        (None, [FIRST, THIRD], {FIRST, THIRD}),
    ],
)
async def test_the_subset_in_either_place(header, metadata, allowed):
    """V17-V19, V41: a header can only narrow what the metadata allows."""
    headers = {} if header is None else {SUBSET: header}
    async with Proxy(router(pool())) as proxy:
        result = await proxy.ask(
            "buffered", "/v1/completions", [COMPLETION], headers=headers, subset=metadata
        )
        assert set(result.picked) == allowed


async def test_no_replica_in_the_subset():
    """V23, V25, V43: 503, for HTTP and for gRPC callers."""
    headers = {SUBSET: "192.168.1.99:8000"}
    async with Proxy(router(pool())) as proxy:
        result = await proxy.ask("none", "/v1/models", method="GET", headers=headers)
        assert result.refused == (503, "no-endpoints")
        result = await proxy.ask("duplex", GRPC_INFER, [frame("toy-llm")], headers=headers)
        assert result.decisive.message.immediate_response.grpc_status.status == 14


async def test_control_headers_of_clients_are_removed():
    """V83: with a pick and without one, but for those that the picker sets."""
    spoofed = {"x-gateway-destination-endpoint": "6.6.6.6:1", "x-tidegate-pool": "vision"}
    for request_router, picked in ((router(pool()), True), (router(), False)):
        async with Proxy(request_router) as proxy:
            result = await proxy.ask("none", "/v1/models", method="GET", headers=spoofed)
            (answer,) = result.answers
            removed = set(answer.common.header_mutation.remove_headers)
            assert set(spoofed) <= removed | set(answer.headers)
            assert (answer.picked is not None) is picked
            assert "6.6.6.6:1" not in answer.headers.values()


async def test_a_body_before_its_headers():
    """V117: held by another filter it is decided on, in the metadata; else it is too late."""
    async with Proxy(router(pool())) as proxy:
        for served, late in (({}, False), ({f"{SUBSET[:-7]}-served": FIRST}, True)):
            message = pb.ProcessingRequest()
            message.request_body.body, message.request_body.end_of_stream = COMPLETION, True
            message.protocol_config.request_body_mode = MODE.BUFFERED
            fields = message.attributes["envoy.filters.http.ext_proc"].fields
            fields["request.path"].string_value = "/v1/completions"
            message.metadata_context.filter_metadata["envoy.lb"].update(served)
            call, (answer,) = await proxy.talk(Messages(made=[message]))
            assert answer.kind == "request_body"
            assert (answer.picked is None) is late
            call.cancel()
        assert proxy.counted("passes_total", pool="", reason="too-late") == 1


@pytest.mark.parametrize("required", [False, True])
async def test_no_request_goes_unseen(required):
    """Without a pick it is counted, and refused if the operator wants that."""
    options = ExchangeOptions(require_pick=required)
    async with Proxy(router(llm(), vision()), options=options) as proxy:
        result = await proxy.ask("none", "/", method="GET")
        (answer,) = result.answers
        assert answer.kind == ("immediate_response" if required else "request_headers")
        assert proxy.counted("passes_total", pool="", reason="no-pool") == 1


async def test_responses_in_duplex():
    """V47, V62, V77: llm-d's proxy sends all of a response through the picker, and gets it back."""
    async with Proxy(router(pool())) as proxy:
        call = proxy.open()
        messages = Proxy.messages("duplex").head("/v1/completions").body(COMPLETION)
        messages.made[0].protocol_config.response_body_mode = MODE.FULL_DUPLEX_STREAMED
        for message in messages.bytes():
            await call.write(message)
        for _ in range(2):
            await call.read()
        chunks = (b"data: {}\n\n", b"y" * 100_000, b"")
        response = Messages().response(served={"x-gateway-destination-endpoint-served": SECOND})
        for number, chunk in enumerate(chunks, 1):
            response.response("body", chunk, end=number == len(chunks))
        for message in response.bytes():
            await call.write(message)
        assert Answer.of(await call.read()).kind == "response_headers"
        back = b""
        ended = False
        while not ended:
            part = Answer.of(await call.read()).common.body_mutation.streamed_response
            back, ended = back + part.body, part.end_of_stream
        assert back == b"".join(chunks)
        assert proxy.router.registry.in_flight()["r2"] == 1, "V28: who served"
        await proxy.finish(call)
        await proxy.settled(Outcome.DONE)
