"""How many uploads one client may have under way."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body, BodySending, Exchange, Lost, Refuse, ReplyHead
from support.exchanges import PROMPT, grpc, head, unnamed
from support.streams import CHAT_PATH, GRPC_INFER, llm, router, vision

MOST = 3


def begin(request_router, event):
    """Return an exchange that has seen the headers, and its reply."""
    exchange = Exchange(request_router)
    (reply,) = exchange.on(event, 1.0, 1000.0)
    return exchange, reply


def fill(request_router, client="a"):
    """Begin as many uploads as a client may have."""
    begun = [begin(request_router, head(client=client)) for _ in range(MOST)]
    assert all(isinstance(reply, ReplyHead) for _, reply in begun)
    return [exchange for exchange, _ in begun]


@pytest.mark.parametrize(
    ("event", "status"),
    [(head(client="a"), None), (unnamed(CHAT_PATH, client="a"), None), (grpc(client="a"), 8)],
)
def test_a_further_upload_is_refused_at_its_head(event, status):
    """In the caller's dialect, with a time after which to try again; others are served."""
    request_router = router(llm(uploads_per_client=MOST))
    fill(request_router)
    exchange, refused = begin(request_router, event)
    assert (refused.status, refused.reason, refused.grpc_status) == (
        429,
        "too-many-uploads",
        status,
    )
    assert ("retry-after", "1") in refused.headers
    exchange.on(Lost(clean=True), 2.0, 1001.0)
    assert isinstance(begin(request_router, head(client="b"))[1], ReplyHead)


@pytest.mark.parametrize("ends", ["whole", "lost"])
def test_an_upload_that_ends_makes_room(ends):
    """Once its end was seen, or once the request is over."""
    request_router = router(llm(uploads_per_client=MOST))
    first, *_ = fill(request_router)
    if ends == "whole":
        first.on(Body(PROMPT, end_of_stream=True), 2.0, 1001.0)
    else:
        first.on(Lost(clean=True), 2.0, 1001.0)
    assert isinstance(begin(request_router, head(client="a"))[1], ReplyHead)
    assert isinstance(begin(request_router, head(client="a"))[1], Refuse)


def test_an_upload_whose_end_was_not_seen_counts_to_the_end_of_the_request():
    """It has been forwarded, and may stand on a connection to a replica."""
    request_router = router(llm(uploads_per_client=MOST))
    exchanges = fill(request_router)
    for exchange in exchanges:
        (reply,) = exchange.on(Body(PROMPT[:-4], end_of_stream=False), 2.0, 1001.0)
        assert reply.pick is not None
    assert isinstance(begin(request_router, head(client="a"))[1], Refuse)
    for exchange in exchanges:
        exchange.on(Lost(clean=True), 3.0, 1002.0)
    assert len(request_router.uploads) == 0
    assert isinstance(begin(request_router, head(client="a"))[1], ReplyHead)


@pytest.mark.parametrize("bounds", [(0, MOST), (MOST, 0), (0, 0)])
def test_zero_is_no_bound(bounds):
    """Where the pool is not known yet, a pool without a bound decides."""
    request_router = router(llm(uploads_per_client=bounds[0]), vision(uploads_per_client=bounds[1]))
    for _ in range(2 * MOST):
        assert isinstance(begin(request_router, unnamed(client="a"))[1], ReplyHead)


def test_unknown_clients_and_requests_without_bodies_do_not_count():
    """A generic gateway does not say who its clients are, and headers are no upload."""
    request_router = router(llm(uploads_per_client=1))
    for _ in range(3):
        assert isinstance(begin(request_router, head())[1], ReplyHead)
        assert isinstance(begin(request_router, head(client="a", end_of_stream=True))[1], ReplyHead)
    stream = head("/inference.GRPCInferenceService/ModelStreamInfer", client="a")
    assert isinstance(begin(request_router, stream)[1], ReplyHead)
    assert len(request_router.uploads) == 0


def test_a_duplex_body_counts_too():
    """Its chunks wait in the picker, so it is the same upload."""
    request_router = router(llm(uploads_per_client=1))
    event = head(GRPC_INFER, cluster="llm/stable/grpc", request_body=BodySending.DUPLEX, client="a")
    exchange = Exchange(request_router)
    assert exchange.on(event, 1.0, 1000.0) == ()
    assert isinstance(begin(request_router, head(client="a"))[1], Refuse)
