"""Needs of models, adapters and zones in the fleet."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from xds_server.fleet.model.routing import GpuWeightsSpec, LearnedSpec, Routing
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.view import View
from xds_server.resources.pools import pool_resource

MODEL = "llm-model"


def found(**more: Any) -> list[tuple[str, str]]:
    """Return place and message of each problem of one pool."""
    return [(each.path, each.message) for each in problems(fleet(pool(**more)))]


def test_what_is_declared_reaches_the_pickers() -> None:
    """Devices, adapters, needs and settings of policies, in the units of the protocol."""
    made = fleet(
        pool(
            endpoints=[
                endpoint(1, device="a100", adapters=["fr"], zone="a"),
                endpoint(2, variant="canary"),
            ],
            model_needs=[
                {"model": MODEL, "memory_mib": 2, "device": "a100", "device_required": True}
            ],
            routing={
                "gpu_weights": {"gpu": 1},
                "learned": {"min_decisions": 5000, "explore_percent": 2},
                "co_batch_hold_ms": 0.5,
                "adapters": "require",
                "prefer_zone": True,
                "spill_factor": 2,
            },
        )
    )
    assert problems(made) == []
    sent = pool_pb2.Pool.FromString(pool_resource(View(made), made.pools[0]))
    assert (sent.endpoints[0].device, list(sent.endpoints[0].adapters)) == ("a100", ["fr"])
    (needs,) = sent.model_needs
    assert (needs.model, needs.memory_bytes, needs.device_required) == (MODEL, 2**21, True)
    routing = sent.routing
    assert (routing.gpu_weights.queue, routing.gpu_weights.gpu) == (0.4, 1.0)
    assert (routing.learned.min_decisions, routing.learned.explore) == (5000, 0.02)
    assert (routing.co_batch_hold_seconds, routing.adapters) == (
        0.0005,
        pool_pb2.ADAPTERS_REQUIRE,
    )
    assert (routing.prefer_zone, routing.spill_factor) == (True, 2.0)


@pytest.mark.parametrize(
    ("more", "place", "words"),
    [
        ({"model_needs": [{"model": "x"}]}, "model_needs[0].model", "does not serve 'x'"),
        ({"model_needs": [{"model": MODEL}] * 2}, "model_needs[1].model", "model_needs[0]"),
        (
            {"model_needs": [{"model": MODEL, "device_required": True}]},
            "model_needs[0].device_required",
            "write `device`",
        ),
        (
            {"model_needs": [{"model": MODEL, "device": "a100", "device_required": True}]},
            "model_needs[0].device",
            "write `device: a100`",
        ),
        ({"routing": {"adapters": "require"}}, "routing.adapters", "declare them or write"),
        ({"routing": {"prefer_zone": True}}, "routing.prefer_zone", "write zones"),
        ({"routing": {"zone_hop": "2ms"}}, "routing.zone_hop", "`prefer_zone: true`"),
    ],
)
def test_what_could_never_be_met_is_reported(more: dict[str, Any], place: str, words: str) -> None:
    """One error names the location and the correction."""
    ((path, message),) = found(**more)
    assert path == f"pools[0].{place}"
    assert words in message


def test_one_replica_has_one_device() -> None:
    """Two pools that share a replica must declare the same device."""
    first = pool(default=True, endpoints=[endpoint(1, device="t4"), endpoint(3, variant="canary")])
    second = pool("b", variants=[{"name": "stable"}], endpoints=[endpoint(1, device="a100")])
    ((path, message),) = [(each.path, each.message) for each in problems(fleet(first, second))]
    assert path == "pools[1].endpoints[0].device"
    assert "write the same" in message


def test_some_weight_is_above_zero() -> None:
    """With all weights 0 the policy has no order."""
    with pytest.raises(ValidationError, match="all weights are 0"):
        GpuWeightsSpec(queue=0, gpu=0, kv=0, latency=0)


def test_exploration_and_hold_are_bounded() -> None:
    """At most 2 % of the requests explore, and none is held for more than 0.5 ms."""
    with pytest.raises(ValidationError):
        LearnedSpec(explore_percent=2.1)
    with pytest.raises(ValidationError):
        Routing(co_batch_hold_ms=0.6)


TEMPLATE = {"tokenizer": "/t.json", "chat_template": "/c.json"}


def test_a_chat_template_reads_whole_bodies() -> None:
    """Tools are rendered first and stand last, so a first part of a body is not enough."""
    made = fleet(pool(default=True, routing=TEMPLATE))
    assert made.pools[0].routing.body == "full"
    assert problems(made) == []


@pytest.mark.parametrize("body", ["none", "peek"])
def test_a_chat_template_refuses_another_body_mode(body: str) -> None:
    """Chats would silently be predicted as without it."""
    found = problems(fleet(pool(default=True, routing={**TEMPLATE, "body": body})))
    assert [each.path for each in found] == ["pools[0].routing.body"]


def test_a_chat_template_needs_a_tokenizer() -> None:
    """Its text has no ids without one."""
    found = problems(fleet(pool(default=True, routing={"chat_template": "/c.json"})))
    assert [each.path for each in found] == ["pools[0].routing.chat_template"]
