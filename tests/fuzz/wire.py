"""What is fuzzed of wire and exchange: one byte string to one whole stream of messages.

The bytes choose kind, order and content of the messages, well formed or not, in every body mode.
Each reply is held against what Envoy accepts, and what is kept against its bounds.
"""

from __future__ import annotations

import re
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

from ext_proc.exchange import (
    Body,
    BodySending,
    Exchange,
    ExchangeState,
    Head,
    IllegalEventError,
    Lost,
    Stopped,
)
from ext_proc.exchange.known import FIRST_PART_BYTES, MAX_SUBSET
from ext_proc.exchange.messages import MAX_PASS_THROUGH_BYTES
from ext_proc.server.wire import WireError, Writer, event_of, parse_request
from support.streams import CHAT_PATH, GRPC_INFER, GRPC_STREAM, INFER_PATH, llm, router, vision
from tidegate_api.names import (
    CLUSTER_ATTRIBUTE,
    DESTINATION_HEADER,
    DESTINATION_SERVED_KEY,
    LB_NAMESPACE,
    ROUTE_ATTRIBUTE,
    SUBSET_KEY,
    SUBSET_NAMESPACE,
    TIDEGATE_NAMESPACE,
)

MAX_MESSAGES = 16
PATHS = (
    INFER_PATH,
    CHAT_PATH,
    GRPC_INFER,
    GRPC_STREAM,
    "/inference.GRPCInferenceService/ModelReady",
    "/v2/models/toy-llm/infer",
    "/v2/models/%00%ff/versions/7/infer",
    "",
)
CLUSTERS = ("llm/stable/http", "llm/stable/grpc", "vision/stable/http", "gone/x/http", "", "//")
ROUTES = ("llm/http", "unnamed/x", "")
NAMES = (
    "content-type",
    "content-encoding",
    "grpc-encoding",
    "grpc-timeout",
    "tidegate-pool",
    "tidegate-model",
    "tidegate-sequence-id",
    "x-session-id",
    "inference-header-content-length",
    "x-variant",
)
_MODE = processing_mode_pb2.ProcessingMode
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")
"""What Envoy's ``checkHeader`` lets through, and what a log can hold."""


class Source:
    """The fuzzer's bytes, read from the front; zeros follow after their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        """Return the next byte."""
        return (self.bytes(1) or b"\0")[0]

    def bytes(self, count: int) -> bytes:
        """Return at most this many bytes."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def some(self) -> bytes:
        """Return as many bytes as the next byte states; large numbers repeat the available ones."""
        size = self.byte()
        if size < 224:
            return self.bytes(size)
        return self.bytes(size - 200) * (1 << (size - 224) // 2)


def _subset(message: Any, source: Source) -> None:
    kind = source.byte()
    if kind % 4:
        return
    fields = message.metadata_context.filter_metadata[SUBSET_NAMESPACE].fields
    text = source.some().decode("latin-1")
    if kind % 8:
        fields[SUBSET_KEY].string_value = text
    else:
        for entry in text.split(","):
            fields[SUBSET_KEY].list_value.values.add(string_value=entry)


def _head(source: Source, mode: int) -> Any:
    message = pb.ProcessingRequest()
    part = message.request_headers
    how = source.byte()
    part.end_of_stream = not how % 8
    path = PATHS[source.byte() % len(PATHS)]
    pairs = [(":method", b"GET" if how % 16 == 1 else b"POST"), (":path", path.encode())]
    pairs += [(NAMES[source.byte() % len(NAMES)], source.some()) for _ in range(source.byte() % 6)]
    for name, value in pairs:
        part.headers.headers.add(key=name, raw_value=value)
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields[CLUSTER_ATTRIBUTE].string_value = CLUSTERS[source.byte() % len(CLUSTERS)]
    fields[ROUTE_ATTRIBUTE].string_value = ROUTES[source.byte() % len(ROUTES)]
    message.protocol_config.request_body_mode = mode % 7
    message.protocol_config.response_body_mode = mode // 7 % 7
    _subset(message, source)
    return message


def _message(source: Source, mode: int, kind: int) -> bytes:
    """Return the bytes of one message."""
    if kind == 0:
        return source.some()
    message = pb.ProcessingRequest()
    if kind == 1:
        message = _head(source, mode)
    elif kind == 2:
        message.request_trailers.SetInParent()
    elif kind == 3:
        part = ("response_headers", "response_body", "response_trailers")[source.byte() % 3]
        getattr(message, part).SetInParent()
        fields = message.metadata_context.filter_metadata[LB_NAMESPACE].fields
        served = ("10.0.0.2:8080", "10.0.0.1:8081", "absent", "")[source.byte() % 4]
        fields[DESTINATION_SERVED_KEY].string_value = served
    else:
        message.request_body.body = source.some()
        message.request_body.end_of_stream = not source.byte() % 4
        _subset(message, source)
    return bytes(message.SerializeToString())


def one_stream(data: bytes) -> None:
    """Run the stream that ``data`` describes; raise if a promise breaks."""
    source = Source(data)
    settings = source.byte()
    body = ("none", "peek", "full")[settings % 3]
    request_router = router(
        llm(body=body, max_body_bytes=4096, per_endpoint_in_flight=settings // 3 % 2), vision()
    )
    exchange, writer = Exchange(request_router), Writer("picker-1")
    mode = source.byte()
    picks = count = 0
    while source and count < MAX_MESSAGES:
        # Most streams begin with a head: others end at once.
        kind = source.byte() % 8 if count or settings % 7 == 0 else 1
        count += 1
        before = exchange.state
        try:
            event = event_of(parse_request(_message(source, mode, kind)))
            actions = exchange.on(event, 1.0, 1000.0)
        except (DecodeError, WireError):
            break  # the service closes the stream
        except IllegalEventError:
            assert exchange.state is before
            break
        if isinstance(event, Head):
            assert len(event.subset or ()) <= MAX_SUBSET
        picks += sum(_acceptable(writer.write(each), exchange) for each in actions)
        waiting = exchange._waiting
        held = 0 if waiting is None or waiting.held is None else len(waiting.held)
        assert held < FIRST_PART_BYTES
    assert picks <= 1
    assert len(request_router.ledger) <= 1
    exchange.on(Stopped() if settings % 2 else Lost(clean=True), 2.0, 1001.0)
    assert exchange.state is ExchangeState.OVER
    assert len(request_router.ledger) == 0
    assert request_router.ledger.unmatched == 0


def _acceptable(reply: bytes, exchange: Exchange) -> bool:
    """Check one reply against what Envoy accepts; return whether it carries a decision."""
    message = pb.ProcessingResponse.FromString(reply)
    kind = message.WhichOneof("response")
    assert kind is not None
    if kind == "immediate_response":
        immediate = message.immediate_response
        assert 400 <= immediate.status.code <= 503
        assert 0 <= immediate.grpc_status.status <= 16
        assert len(immediate.body) <= 4096
        immediate.body.decode()
        _good_headers(immediate.headers.set_headers)
        assert not message.HasField("mode_override")
        return True
    if "trailers" in kind:
        return False
    common = getattr(message, kind).response
    _good_headers(common.header_mutation.set_headers)
    if message.HasField("mode_override"):
        # Envoy ignores or refuses it elsewhere.
        assert kind == "request_headers"
        assert not exchange._duplex[0]
    if common.body_mutation.HasField("streamed_response"):
        assert len(common.body_mutation.streamed_response.body) <= MAX_PASS_THROUGH_BYTES
    picked = message.HasField("dynamic_metadata")
    if picked:
        fields = message.dynamic_metadata.fields
        assert set(fields) == {LB_NAMESPACE, TIDEGATE_NAMESPACE}
        (destination,) = (
            each.header.raw_value.decode()
            for each in common.header_mutation.set_headers
            if each.header.key == DESTINATION_HEADER
        )
        named = fields[LB_NAMESPACE].struct_value.fields[DESTINATION_HEADER].string_value
        assert named == destination
    return bool(picked)


def _good_headers(options: Any) -> None:
    for option in options:
        assert _HEADER_NAME.fullmatch(option.header.key)
        assert not option.header.value
        assert _HEADER_VALUE.fullmatch(option.header.raw_value.decode())


def duplex_is_complete(chunks: list[bytes], path: str, *, unnamed: bool) -> None:
    """Run a whole duplex request: the forwarded bytes equal the received ones, or it is refused."""
    request_router = router(llm(), vision())
    exchange = Exchange(request_router)
    protocol = "grpc" if path.startswith("/inference") else "http"
    head = Head(
        "POST",
        path,
        {},
        end_of_stream=False,
        cluster=f"llm/stable/{protocol}",
        route="unnamed/x" if unnamed else "llm/x",
        request_body=BodySending.DUPLEX,
    )
    actions = list(exchange.on(head, 1.0, 1.0))
    for number, chunk in enumerate(chunks, 1):
        actions += exchange.on(Body(chunk, end_of_stream=number == len(chunks)), 1.0, 1.0)
    kinds = [type(each).__name__ for each in actions]
    if "Refuse" in kinds:
        assert kinds.index("Refuse") == 0
    else:
        assert kinds[0] == "ReplyHead"
        parts = [
            each.pass_through for each in actions if getattr(each, "pass_through", None) is not None
        ]
        assert b"".join(each.chunk for each in parts) == b"".join(chunks)
        assert [each.end_of_stream for each in parts].count(True) == 1
        assert parts[-1].end_of_stream
    exchange.on(Lost(clean=True), 2.0, 2.0)
    assert len(request_router.ledger) == 0
