"""llm-d's picker gets the weights of its repository and the replicas of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.emulator.fleet import ReplicaAddresses
from bench.peers import llm_d

PLACES = [ReplicaAddresses(f"e{n}", f"127.0.0.1:{n}", "", "") for n in (1, 2)]
CHART = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}


@pytest.mark.parametrize(
    ("name", "expected"),
    [(llm_d.CHART, CHART), (llm_d.NO_HIT_LRU, {**CHART, "no-hit-lru-scorer": 2})],
)
def test_weights_are_those_of_the_repository(name: str, expected: dict[str, int]) -> None:
    """Each weighted scorer is declared as a plugin, and endpoints come from the file."""
    made = llm_d.configuration(name, Path("/e.json"))
    (profile,) = made["schedulingProfiles"]
    assert {each["pluginRef"]: each["weight"] for each in profile["plugins"]} == expected
    declared = {each.get("name", each["type"]): each for each in made["plugins"]}
    assert set(expected) < set(declared)
    source = declared[made["dataLayer"]["discovery"]["pluginRef"]]
    assert source["parameters"] == {"path": "/e.json"}


def test_replicas_are_listed_by_address_and_port() -> None:
    """The file has ports as text, as its reader demands."""
    assert llm_d.endpoints(PLACES)["endpoints"][1] == {
        "name": "e2",
        "address": "127.0.0.1",
        "port": "2",
    }


def test_envoy_goes_where_the_picker_says() -> None:
    """The picker's header is the destination; the picker itself is reached over HTTP/2."""
    made = llm_d.bootstrap("127.0.0.1:80", "127.0.0.1:81", "127.0.0.1:82")
    replicas, picker = made["static_resources"]["clusters"]
    assert (
        replicas["original_dst_lb_config"]["http_header_name"] == "x-gateway-destination-endpoint"
    )
    assert "http2_protocol_options" in str(picker)
    assert "'port_value': 82" in str(picker)
    command = llm_d.command(Path("epp"), Path("c"), "127.0.0.1:82", "127.0.0.1:83", "127.0.0.1:84")
    assert command[command.index("--grpc-port") + 1] == "82"
