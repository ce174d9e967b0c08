"""Builders of the events of an exchange, and what runs them."""

from __future__ import annotations

from ext_proc.exchange import BodySending, Exchange, Head
from support.streams import CHAT_PATH, GRPC_INFER, INFER_PATH

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


def generic(path=INFER_PATH, *, sent=BodySending.BUFFERED, cluster=None, **rest):
    """Return a head as a proxy sends it that the control server did not configure."""
    return head(path, cluster=cluster, route=None, request_body=sent, **rest)
