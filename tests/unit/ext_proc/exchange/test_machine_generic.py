"""Exchanges with a proxy that the control server did not configure."""

from __future__ import annotations

import pytest

from ext_proc.exchange import (
    Body,
    BodyModeOverride,
    BodySending,
    Exchange,
    ExchangeOptions,
    ExchangeState,
    Lost,
    ReplyBody,
    ReplyHead,
    Response,
    ResponsePart,
)
from ext_proc.routing.values.request import Features, Form
from ext_proc.routing.values.ticket import Outcome
from support.exchanges import PROMPT, generic, head, run
from support.streams import CHAT_PATH, GRPC_STREAM, llm, router, vision
from tidegate_api.names import SUBSET_KEY

CHAT = b'{"model": "vision", "messages": []}'


@pytest.mark.parametrize("cluster", [None, "tidegate-picker", "httproute/default/llm/rule/0"])
def test_a_generic_proxy_gets_a_pick(cluster):
    """Without a cluster of the fleet the path names the pool; routes stay, spoofing is removed."""
    _, reply = run(router(llm(), vision()), generic(sent=BodySending.NONE, cluster=cluster))
    assert reply.pick.generic
    assert not reply.pick.clear_route_cache
    assert reply.pick.decision.pool == "llm"
    assert ("x-tidegate-pool", "llm") in reply.pick.headers
    assert ("x-tidegate-cluster", "llm/stable/http") in reply.pick.headers
    assert reply.override is None


@pytest.mark.parametrize(
    ("event", "body", "pool"),
    [
        (generic(headers={"tidegate-pool": "vision"}), PROMPT, "vision"),
        (generic(CHAT_PATH, headers={"tidegate-model": "vision"}), b"{}", "vision"),
        (generic(), PROMPT, "llm"),
        (generic(CHAT_PATH), CHAT, "vision"),
        (generic("/elsewhere/v1/completions"), CHAT, "vision"),
        (generic(CHAT_PATH), b"{}", "llm"),
    ],
    ids=["pool-header", "model-header", "path", "body", "body-elsewhere", "default"],
)
def test_the_order_in_which_a_generic_request_finds_its_pool(event, body, pool):
    """Header, path, body, default."""
    _, reply = run(router(llm(), vision()), event, Body(body, end_of_stream=True))
    assert reply.pick.decision.pool == pool


@pytest.mark.parametrize(
    ("event", "body", "pool"),
    [
        (generic("/metrics", method="GET", end_of_stream=True), None, "llm"),
        (generic("/custom", sent=BodySending.DUPLEX), None, "llm"),
        (generic("/v1/models", method="GET", end_of_stream=True), None, "llm"),
        (generic("", method=""), CHAT.replace(b"vision", b"toy-llm"), "llm"),
        (generic("", method=""), b"no JSON", "llm"),
    ],
)
def test_a_default_pool_takes_what_names_nothing(event, body, pool):
    """Also where the proxy sends no path: the body is then read as OpenAI's, if it can be."""
    events = (event,) if body is None else (event, Body(body, end_of_stream=True))
    request_router = router(llm(default_for_http=True), vision())
    exchange = Exchange(request_router)
    actions = [action for each in events for action in exchange.on(each, 1.0, 1000.0)]
    (pick,) = [each.pick for each in actions if each.pick is not None]
    assert pick.decision.pool == pool


def test_the_default_pool_without_models_takes_any_model():
    """As on its own paths."""
    request_router = router(llm(models=frozenset(), default_for_http=True), vision())
    body = Body(b'{"model": "unheard-of", "messages": []}', end_of_stream=True)
    for path in (CHAT_PATH, "/other/v1/completions", "/v2/models/unheard-of/generate"):
        _, reply = run(request_router, generic(path), body)
        assert reply.pick.decision.pool == "llm"


def test_the_default_pool_without_models_takes_calls_of_any_model():
    """Over gRPC too, where a call names its model in the message."""
    features = Features(Form.GRPC_INFER, model="unheard-of")
    pools = llm(models=frozenset(), default_for_grpc=True), vision()
    assert router(*pools).registry.pool_for(features, "", "grpc") == "llm"
    pools = llm(models=frozenset(), default_for_grpc=False), vision()
    assert router(*pools).registry.pool_for(features, "", "grpc").kind == "unknown-model"


def test_what_is_no_inference_and_has_no_default_is_a_pass():
    """The proxy may have other upstreams; a client's destination is removed all the same."""
    request_router = router(llm(), vision())
    exchange, reply = run(request_router, generic("/", method="GET", end_of_stream=True))
    assert (exchange.passed, reply) == ("no-pool", ReplyHead(strip=True))
    _, refused = run(request_router, generic("/v2/models/none/generate"))
    assert (refused.status, refused.reason) == (404, "unknown-model")


def test_a_generic_proxy_is_asked_for_nothing():
    """It need not allow an override, so without a body the headers decide."""
    request_router = router(llm(), vision())
    _, reply = run(request_router, generic(CHAT_PATH, sent=BodySending.NONE))
    assert reply.override is None
    assert reply.pick.decision.pool == "llm"
    _, reply = run(request_router, generic("/v2/models/toy-llm/config"))
    assert reply == ReplyHead(reply.pick)


def test_a_generic_stream_whose_body_is_buffered_is_called_off():
    """Its body never ends."""
    event = generic(GRPC_STREAM, headers={"content-type": "application/grpc"})
    _, reply = run(router(llm()), event)
    assert reply.override is BodyModeOverride.NOTHING


@pytest.mark.parametrize("says", ["proxy", "operator"])
def test_one_destination(says):
    """A cluster of type ORIGINAL_DST cannot read a list; other headers stay."""
    by_operator = ExchangeOptions(one_destination=says == "operator")
    exchange = Exchange(router(llm()), options=by_operator)
    event = generic(sent=BodySending.NONE).changed(one_destination=says == "proxy")
    (reply,) = exchange.on(event, 1.0, 1000.0)
    assert reply.pick.destination == reply.pick.decision.addresses[0]
    assert dict(reply.pick.headers)["x-gateway-destination-endpoint"] == reply.pick.destination
    assert dict(reply.pick.headers)["x-tidegate-pool"] == "llm"
    exchange = Exchange(router(llm(body="none")), options=by_operator)
    (reply,) = exchange.on(head(), 1.0, 1000.0)
    assert len(reply.pick.destination.split(",")) == 3


@pytest.mark.parametrize(
    ("header", "metadata", "allowed"),
    [
        ("10.0.0.2:8080", None, {"10.0.0.2:8080"}),
        (" 10.0.0.2 , ", None, {"10.0.0.2:8080"}),
        ("10.0.0.2", {"10.0.0.2:8080", "10.0.0.3:8080"}, {"10.0.0.2:8080"}),
        ("10.0.0.2:8080", {"10.0.0.2", "10.0.0.3"}, {"10.0.0.2:8080"}),
        ("10.0.0.1:8080", {"10.0.0.3:8080"}, None),
        ("", None, None),
    ],
)
def test_a_subset_in_a_header(header, metadata, allowed):
    """It is read from generic proxies only, and can only narrow what the metadata allows."""
    subset = None if metadata is None else frozenset(metadata)
    event = generic(headers={SUBSET_KEY: header}, sent=BodySending.NONE, subset=subset)
    _, reply = run(router(llm()), event)
    if allowed is None:
        assert (reply.status, reply.reason) == (503, "no-endpoints")
    else:
        assert set(reply.pick.destination.split(",")) == allowed
    _, reply = run(router(llm(body="none")), head(headers={SUBSET_KEY: header}))
    assert len(reply.pick.destination.split(",")) == 3


def test_a_body_before_its_headers():
    """Attributes take the place of headers; the reply has the pick, in the metadata too."""
    first = Body(PROMPT, end_of_stream=True, head=generic())
    exchange, reply = run(router(llm()), first)
    assert isinstance(reply, ReplyBody)
    assert reply.pick.prompt_blocks == 4
    assert exchange.state is ExchangeState.DECIDED


@pytest.mark.parametrize("sent", [BodySending.STREAMED, BodySending.DUPLEX, BodySending.NONE])
def test_a_body_that_comes_after_the_choice_is_a_pass(sent):
    """The headers have gone to a replica."""
    exchange, reply = run(router(llm()), Body(PROMPT, end_of_stream=True, head=generic(sent=sent)))
    assert (exchange.passed, reply) == ("too-late", ReplyBody())


def test_a_stream_that_ends_after_the_pick_says_nothing_of_the_request():
    """Envoy ends it within milliseconds where it sends nothing more; no duration is learned."""
    request_router = router(llm())
    for later, outcome in (
        ((), Outcome.UNSEEN),
        ((Response(ResponsePart.HEADERS),), Outcome.DONE),
        ((Body(b"", end_of_stream=True),), Outcome.DONE),
    ):
        before = request_router.ledger.outcomes[outcome]
        exchange = Exchange(request_router)
        for event in (generic(sent=BodySending.NONE), *later, Lost(clean=True)):
            exchange.on(event, 1.0, 1000.0)
        assert request_router.ledger.outcomes[outcome] == before + 1
