"""Actions to Envoy's messages."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.exchange import (
    BodyModeOverride,
    PassThrough,
    Pick,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
    ResponsePart,
)
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.server.wire import Writer
from support.streams import MODE, Answer

DECISION = Decision(None, ("10.0.0.1:80",), "llm", "stable", "least")
PICK = Pick(
    "10.0.0.1:80",
    (("x-gateway-destination-endpoint", "10.0.0.1:80"),),
    clear_route_cache=False,
    ticket="7",
    decision=DECISION,
    prompt_blocks=0,
    prompt_tokens=None,
    matched_tokens=0,
)


def write(action):
    return Answer.of(Writer("picker-1").write(action))


def test_a_pick_in_a_head_reply():
    """Destination as header and metadata, picker and ticket as metadata, no route cleared."""
    answer = write(ReplyHead(PICK))
    assert (answer.kind, answer.picked) == ("request_headers", ["10.0.0.1:80"])
    assert not answer.common.clear_route_cache
    assert dict(answer.message.dynamic_metadata["tidegate"]) == {
        "picker": "picker-1",
        "ticket": "7",
    }
    for option in answer.common.header_mutation.set_headers:
        assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD
        assert option.header.value == ""
    assert not answer.message.HasField("mode_override")


def test_a_generic_pick_says_its_pool_and_removes_what_clients_may_not_set():
    """The proxy's clusters have other names, and nothing else has stripped the client's headers."""
    writer = Writer("picker-1", "127.0.0.1:18001", "a1-")
    answer = Answer.of(writer.write(ReplyHead(PICK.changed(generic=True))))
    assert answer.picked == ["10.0.0.1:80"]
    assert answer.message.dynamic_metadata["tidegate"]["pool"] == "llm"
    assert answer.headers["x-tidegate-ticket"] == "a1-7;picker-1;127.0.0.1:18001;;llm"
    removed = set(answer.common.header_mutation.remove_headers)
    assert "x-gateway-destination-endpoint-subset" in removed
    assert "x-gateway-destination-endpoint" not in removed
    assert not any(name.startswith("x-envoy-") for name in removed)


def test_a_pass_of_a_generic_proxy_removes_a_clients_destination():
    """A cluster that reads the header would send the request anywhere."""
    answer = write(ReplyHead(strip=True))
    assert answer.picked is None
    assert "x-gateway-destination-endpoint" in answer.common.header_mutation.remove_headers


def test_a_pick_tells_access_logs_where_to_go():
    """The picker's address, tickets of this run, and bodies that may be the caller's fault."""
    writer = Writer("picker-1", "127.0.0.1:18001", "a1-")
    answer = Answer.of(writer.write(ReplyHead(PICK.changed(unreadable=True))))
    assert dict(answer.message.dynamic_metadata["tidegate"]) == {
        "picker": "picker-1",
        "ticket": "a1-7",
        "at": "127.0.0.1:18001",
        "unreadable": True,
    }
    assert answer.headers["x-tidegate-ticket"] == "a1-7;picker-1;127.0.0.1:18001"


def test_a_pick_carries_its_pickers_log_slot():
    """Envoy's sinks are told apart by it, of requests and of single attempts."""
    writer = Writer("picker-1", "127.0.0.1:18001", "a1-", "3")
    answer = Answer.of(writer.write(ReplyHead(PICK)))
    assert answer.message.dynamic_metadata["tidegate"]["slot"] == "3"
    assert answer.headers["x-tidegate-ticket"] == "a1-7;picker-1;127.0.0.1:18001;3"


@given(
    picker=st.text(max_size=300),
    life=st.sampled_from(["", "a1-", "01-", "1"]),
    at=st.sampled_from(["", "127.0.0.1:18001"]),
    slot=st.sampled_from(["", "0", "12"]),
    ticket=st.none() | st.integers(0, 10**40).map(str),
    destination=st.sampled_from(["10.0.0.1:80", "10.0.0.2:80,10.0.0.1:80"]),
    unreadable=st.booleans(),
    clear=st.booleans(),
    override=st.sampled_from([None, *BodyModeOverride]),
)
def test_a_pick_out_of_parts_says_all_of_it(
    picker, life, at, slot, ticket, destination, unreadable, clear, override
):
    """However long names and tickets are, the parts form the intended message."""
    headers = (("x-gateway-destination-endpoint", destination), ("x-envoy-max-retries", "0"))
    pick = PICK.changed(
        destination=destination,
        headers=headers,
        clear_route_cache=clear,
        ticket=ticket,
        unreadable=unreadable,
    )
    writer = Writer(picker, at, life, slot)
    answer = Answer.of(writer.write(ReplyHead(pick, override)))
    signed = f"{life}{ticket};{quote(picker, safe='')};{at}" + (f";{slot}" if slot else "")
    more = {} if ticket is None else {"x-tidegate-ticket": signed}
    assert answer.headers == dict(headers) | more
    assert answer.common.clear_route_cache is clear
    assert answer.message.HasField("mode_override") is (override is not None)
    metadata = {
        "picker": picker,
        "ticket": life + (ticket or "") or None,
        "at": at or None,
        "slot": slot or None,
        "unreadable": unreadable or None,
    }
    assert json_format.MessageToDict(answer.message.dynamic_metadata) == {
        "envoy.lb": {"x-gateway-destination-endpoint": destination},
        "tidegate": {name: value for name, value in metadata.items() if value is not None},
    }
    again = Answer.of(writer.write(ReplyBody(pick)))
    assert again.message.dynamic_metadata == answer.message.dynamic_metadata
    assert again.common == answer.common


def test_a_pick_that_calls_the_body_off():
    """The pick and the override are in one reply, and response trailers keep the stream open."""
    answer = write(ReplyHead(PICK, BodyModeOverride.NOTHING))
    assert answer.picked is not None
    assert answer.message.mode_override.request_body_mode == MODE.NONE
    assert answer.message.mode_override.response_trailer_mode == MODE.SEND


def test_asking_for_the_first_part():
    """BUFFERED_PARTIAL is requested, and the other modes stay as the route has them."""
    answer = write(ReplyHead(override=BodyModeOverride.FIRST_PART))
    mode = answer.message.mode_override
    assert answer.picked is None
    assert mode.request_body_mode == MODE.BUFFERED_PARTIAL
    assert mode.response_header_mode == MODE.SKIP
    assert mode.response_body_mode == MODE.NONE
    assert mode.response_trailer_mode == MODE.SKIP, "the stream stays open without them"


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (ReplyHead(), "request_headers"),
        (ReplyBody(), "request_body"),
        (ReplyTrailers(), "request_trailers"),
        (ReplyResponse(ResponsePart.BODY), "response_body"),
        (ReplyResponse(ResponsePart.TRAILERS), "response_trailers"),
    ],
)
def test_plain_replies(action, kind):
    """Each only tells Envoy to continue."""
    answer = write(action)
    assert answer.kind == kind
    assert answer.message.ByteSize() == 2


def test_clients_get_no_load_reports():
    """The reply to an answer's headers removes the report that the picker asked for."""
    message = write(ReplyResponse(ResponsePart.HEADERS)).message
    mutation = message.response_headers.response.header_mutation
    assert mutation.remove_headers == ["endpoint-load-metrics", "endpoint-load-metrics-bin"]
    assert not mutation.set_headers


def test_a_pick_in_a_body_reply_without_ticket():
    """A moved pick clears the route cache; a pick without charge names no ticket."""
    moved = Pick(
        "10.0.0.1:80",
        (*PICK.headers, ("x-tidegate-pool", "llm")),
        clear_route_cache=True,
        ticket=None,
        decision=DECISION,
        prompt_blocks=0,
        prompt_tokens=None,
        matched_tokens=0,
    )
    answer = write(ReplyBody(moved))
    assert answer.kind == "request_body"
    assert answer.common.clear_route_cache
    assert answer.headers["x-tidegate-pool"] == "llm"
    assert "ticket" not in answer.message.dynamic_metadata["tidegate"]


def test_pass_through():
    """Chunks are returned as streamed responses in both directions."""
    for action in (
        ReplyBody(pass_through=PassThrough(b"x", end_of_stream=True)),
        ReplyResponse(ResponsePart.BODY, PassThrough(b"x", end_of_stream=True)),
    ):
        streamed = write(action).common.body_mutation.streamed_response
        assert (streamed.body, streamed.end_of_stream) == (b"x", True)


def test_a_refusal():
    """Status, reason header, body and details, and the gRPC status for gRPC callers."""
    answer = write(
        Refuse(503, 14, "no-endpoints", b"why", (("x-tidegate-reason", "no-endpoints"),))
    )
    assert (answer.status, answer.reason) == (503, "no-endpoints")
    immediate = answer.message.immediate_response
    assert (immediate.body, immediate.grpc_status.status) == (b"why", 14)
    assert immediate.details == "tidegate_no_endpoints"
    plain = write(Refuse(400, None, "bad-request", b"{}"))
    assert not plain.message.immediate_response.HasField("grpc_status")
