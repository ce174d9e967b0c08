"""Which requests of a fleet need a picker, and which settings do."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.rules.bodies import FIRST_MESSAGE_BYTES
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.rules.warnings import picker_needs

CHAT = "/v1/chat/completions"


def apart(**more: Any) -> Any:
    """Return a fleet of two pools over separate replicas."""
    own = [endpoint(4), endpoint(5, variant="canary")]
    match = {"models": ["b-model"], "paths": [CHAT]}
    first = {"match": {"models": ["a-model"], "paths": [CHAT]}, **more}
    return fleet(pool("a", default=True, **first), pool("b", endpoints=own, match=match))


def test_one_pool_needs_none() -> None:
    """Whatever a request says, the pool's replicas can answer it."""
    assert picker_needs(fleet()) == []


def test_pools_apart_need_one_for_what_envoy_cannot_read() -> None:
    """Each form has its own sentence, with its pools and its bound."""
    calls, streams, chats = picker_needs(apart())
    assert calls.startswith("gRPC calls of the pools a, b need a picker")
    assert "4194304 bytes" in calls
    assert streams.startswith("gRPC streams of the pools a, b need a picker where they are compr")
    assert f"larger than {FIRST_MESSAGE_BYTES} bytes" in streams
    assert chats == f"compressed requests to {CHAT} of the pools a, b need a picker"


def test_streams_that_no_picker_reads_are_refused_where_envoy_cannot_read_them() -> None:
    """With ``first_message: none`` there is no third."""
    streams = picker_needs(apart(routing={"first_message": "none"}))[1]
    assert "with or without a picker" in streams
    assert "first_message: duplex" in streams


def test_duplex_streams_need_one_when_compressed() -> None:
    """The picker reads them, so only without it they are refused."""
    needs = picker_needs(apart(routing={"first_message": "duplex"}))
    assert needs[1].startswith("gRPC streams of the pools a, b need a picker")


def test_a_fleet_that_fails_closed_needs_one_for_everything() -> None:
    """Then Envoy reads nothing itself."""
    made = fleet(pool(default=True), pickers={"fail_open": False})
    assert picker_needs(made) == [
        "`pickers.fail_open` is off: all requests of pool llm need a picker"
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"routing": {"first_message": "duplex"}},
        {"routing": {"allow_override": ["random"]}},
        {"routing": {"tokenizer": "/models/tokenizer.json"}},
        {"routing": {"tokenizer": "/t.json", "chat_template": "/c.json"}},
        {"routing": {"adapters": "require"}},
        {"circuit_breaker": {"per_endpoint_in_flight": 4}},
        {"model_needs": [{"model": "llm-model", "memory_mib": 100}]},
    ],
)
def test_a_pool_without_a_picker_has_no_settings_of_pickers(more: dict[str, Any]) -> None:
    """A setting that silently has no effect is worse than an error."""
    routing = {**more.get("routing", {}), "policy": "envoy"}
    found = problems(fleet(pool(default=True, **{**more, "routing": routing})))
    assert any("has `policy: envoy`" in each.message for each in found)


def test_a_request_cannot_choose_envoy() -> None:
    """When the picker reads the header it is too late to leave it out."""
    found = problems(fleet(pool(default=True, routing={"allow_override": ["envoy"]})))
    assert [each.path for each in found] == ["pools[0].routing.allow_override"]
