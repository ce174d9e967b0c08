"""A proxy is told to repeat a request only once its end is known."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body, BodySending, Exchange, Trailers
from ext_proc.exchange.messages import ReplyHead
from support.exchanges import PROMPT, generic, grpc, head, run, unnamed
from support.streams import GRPC_STREAM, frame, llm, router, vision
from tidegate_api.names import REPEATABLE_HEADER
from tidegate_api.pools import LEAST_PEEK_BYTES

DUPLEX, STREAMED, BUFFERED = BodySending.DUPLEX, BodySending.STREAMED, BodySending.BUFFERED


def said(action):
    """Return what a reply says: "1" repeatable, "0" not, None nothing."""
    if action.pick is None:
        return "0" if action.once else None
    return dict(action.pick.headers).get(REPEATABLE_HEADER)


@pytest.mark.parametrize(("ended", "expected"), [(True, "1"), (False, "0")])
def test_a_peeked_body(ended, expected):
    """The request is closed while its body is awaited, and opened again by the body's end only."""
    exchange, asked = run(router(llm()), head())
    assert said(asked) == "0"
    (reply,) = exchange.on(Body(PROMPT, end_of_stream=ended), 1.0, 1.0)
    assert said(reply) == expected


@pytest.mark.parametrize(
    "event",
    [
        head(end_of_stream=True),
        head(request_body=BUFFERED, end_of_stream=True),
        head(path="/v2/models/toy-llm/config"),
        grpc(GRPC_STREAM),
    ],
)
def test_what_is_decided_on_headers(event):
    """Envoy holds nothing of such a request, so it stays as Envoy has marked it."""
    _, reply = run(router(llm()), event)
    assert (reply.pick is not None, said(reply)) == (True, None)


def test_a_buffered_body():
    """Envoy waits for all of it before it sends anything."""
    exchange, asked = run(router(llm(body="full")), head(request_body=BUFFERED))
    (reply,) = exchange.on(Body(PROMPT, end_of_stream=True), 1.0, 1.0)
    assert (said(asked), said(reply)) == (None, None)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([Body(frame("toy-llm"), end_of_stream=False)], "0"),
        ([Body(frame("toy-llm"), end_of_stream=True)], "1"),
        ([Body(frame("toy-llm")[:9], end_of_stream=False), Trailers()], "0"),
    ],
)
def test_a_body_in_duplex(events, expected):
    """A stream whose end comes later, or with trailers, is sent once."""
    exchange = Exchange(router(llm()))
    for event in (grpc(GRPC_STREAM, request_body=DUPLEX), *events):
        actions = exchange.on(event, 1.0, 1.0)
    assert said(actions[0]) == expected


@pytest.mark.parametrize("sent", [DUPLEX, STREAMED])
def test_a_pass_closes_what_envoy_sends_in_parts(sent):
    """Without pools a request in duplex still passes through the picker."""
    _, reply = run(router(), head(request_body=sent))
    assert reply == ReplyHead(once=True)
    _, reply = run(router(), head())
    assert reply == ReplyHead()


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (generic(end_of_stream=True), "1"),
        (generic(sent=BodySending.NONE), "1"),
        (generic(sent=STREAMED), "0"),
        (generic(sent=DUPLEX, path="/v2/models/toy-llm/config"), "0"),
        (generic(sent=BodySending.PARTIAL, path="/v2/models/toy-llm/config"), "0"),
    ],
)
def test_a_generic_proxy_is_always_told(event, expected):
    """Its operator's routes may ask for the mark, whoever else writes it."""
    _, reply = run(router(llm()), event)
    assert said(reply) == expected


@pytest.mark.parametrize(("ended", "expected"), [(True, "1"), (False, "0")])
def test_a_generic_proxy_that_cuts_bodies(ended, expected):
    """BUFFERED_PARTIAL is closed with the headers and opened by the end, as if it was asked for."""
    event = generic(sent=BodySending.PARTIAL)
    exchange, asked = run(router(llm()), event)
    (reply,) = exchange.on(Body(PROMPT, end_of_stream=ended), 1.0, 1.0)
    assert (said(asked), said(reply)) == ("0", expected)


def test_an_envoy_without_the_gate_is_asked_for_no_body():
    """An older control server configured it: it would repeat what it must not."""
    _, reply = run(router(llm()), head(gated=False))
    assert (reply.pick is not None, reply.override) == (True, None)


def test_without_the_gate_envoy_finds_the_pool_itself():
    """Only the body names the pool, so a pick on the headers could be a wrong pool's."""
    exchange, reply = run(router(llm(), vision()), unnamed(gated=False))
    assert (reply, exchange.passed) == (ReplyHead(), "ungated")
    _, reply = run(router(llm(), vision()), unnamed(gated=False, request_body=BUFFERED))
    assert reply == ReplyHead()


@pytest.mark.parametrize("form", ["http", "grpc", "unnamed"])
def test_a_peeked_body_that_trailers_end_is_refused(monkeypatch, form):
    """Envoy cuts only above its bound, so a shorter part without an end is ended by trailers."""
    monkeypatch.setattr("ext_proc.exchange.known.CUT_BYTES", LEAST_PEEK_BYTES)
    event = {"http": head(), "grpc": grpc(), "unnamed": unnamed()}[form]
    pools = router(llm(), vision())
    whole = (frame("toy-llm", tensor=9000) if form == "grpc" else PROMPT * 9)[:LEAST_PEEK_BYTES]
    _, reply = run(pools, event, Body(whole, end_of_stream=False))
    assert (reply.reason, reply.status) == ("trailers", 400)
    assert reply.grpc_status == (3 if form == "grpc" else None)
    assert b"without trailers" in reply.body
    _, cut = run(pools, event, Body(whole + b" ", end_of_stream=False))
    assert getattr(cut, "reason", None) != "trailers"


def test_trailers_behind_an_announced_mode_are_not_judged(monkeypatch):
    """In BUFFERED Envoy sends such a body in one piece, and to one replica once: it is routed."""
    monkeypatch.setattr("ext_proc.exchange.known.CUT_BYTES", LEAST_PEEK_BYTES)
    pools = router(llm(body="full"))
    _, reply = run(pools, head(request_body=BUFFERED), Body(PROMPT, end_of_stream=False))
    assert reply.pick is not None
