"""When an exchange decides, what it charges, and any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.exchange import (
    Body,
    BodyModeOverride,
    BodySending,
    Exchange,
    ExchangeOptions,
    ExchangeState,
    Head,
    IllegalEventError,
    Lost,
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
from ext_proc.exchange.messages import MAX_PASS_THROUGH_BYTES
from ext_proc.routing.values.ticket import Outcome
from support.exchanges import PROMPT, grpc, head, in_flight, run
from support.streams import (
    CHAT_PATH,
    GRPC_INFER,
    GRPC_LIVE,
    GRPC_STREAM,
    INFER_PATH,
    frame,
    llm,
    router,
    vision,
)

# --- when the decision falls --------------------------------------------------------------------


def test_peek_requests_the_first_part():
    """Nothing is announced and the pool peeks: the reply requests the body and has no pick.

    Until the end of the body is known, the request must not be repeated.
    """
    exchange, reply = run(router(llm()), head())
    assert reply == ReplyHead(override=BodyModeOverride.FIRST_PART, once=True)
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

    exchange = Exchange(router(llm_with_one), ExchangeOptions(tokenizers={"/t.json": Words()}))
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


# --- after the decision ---------------------------------------------------------------------------


@pytest.mark.parametrize("event", [Trailers(), Response(ResponsePart.HEADERS)])
def test_no_body_after_all_is_a_pass(event):
    """Trailers or a response arrive instead of the body: nothing is charged."""
    request_router = router(llm())
    exchange, _ = run(request_router, head(), event)
    assert exchange.state is ExchangeState.DECIDED
    assert exchange.passed == "no-body"
    assert in_flight(request_router) == 0


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


def test_a_client_that_leaves_before_the_body_is_not_charged():
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
        served=st.sampled_from([None, "10.0.0.2:8080", "absent:1"]),
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
