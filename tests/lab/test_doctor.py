"""``tidegate doctor`` at real Tritons, a real Envoy and a real control server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.command_line import Run
from support.replicas import PATIENT
from tidegate.doctor.replicas import examine
from xds_server.fleet.load import load_text

CLOSED = "127.0.0.1:1"


def fleet_of(stack: Any, **changes: Any) -> Any:
    """Return a fleet of the first two replicas, and these changes of the first one's pool."""
    endpoints = [
        {"id": each.name, "http": each.http, "grpc": each.grpc, "metrics": each.metrics_url}
        for each in stack.replicas[:2]
    ]
    endpoints[0] |= changes.pop("endpoint", {})
    pool: dict[str, Any] = {"name": "a", "match": {"models": ["toy-llm"]}, "endpoints": endpoints}
    pool["health"] = {"timeout": PATIENT}
    return load_text(json.dumps({"pools": [pool | changes]}))


async def test_healthy_replicas_have_no_findings(stack):
    """Models, protocols and pages of real Tritons."""
    assert await examine(fleet_of(stack)) == []


async def test_each_fault_planted_at_real_tritons_is_found(stack):
    """One finding names the replica with its cause, and none is said of the other one."""
    one = stack.replicas[0]
    planted: list[tuple[str, dict[str, Any]]] = [
        ("refuses connections", {"endpoint": {"http": CLOSED}}),
        ("refuses connections", {"endpoint": {"grpc": CLOSED}}),
        ("speaks HTTP/1.1 there, not gRPC", {"endpoint": {"grpc": one.http, "http": None}}),
        ("breaks the connection off", {"endpoint": {"http": one.grpc, "grpc": None}}),
        ("metrics page: refuses", {"endpoint": {"metrics": f"http://{CLOSED}/metrics"}}),
        ("the page has no sample", {"endpoint": {"metrics": f"http://{one.metrics}/none"}}),
        ("in place of a metrics page", {"endpoint": {"metrics": f"http://{one.http}/none"}}),
        ("has no `metrics`", {"endpoint": {"metrics": None}}),
        (
            "does not resolve",
            {"endpoint": {"http": "no.such.host.invalid:1", "grpc": None}},
        ),
        (
            "publishes no KV events",
            {"endpoint": {"telemetry": {"kv_events": {"address": f"tcp://{CLOSED}"}}}},
        ),
    ]
    for words, changes in planted:
        found = await examine(fleet_of(stack, **changes))
        assert found, words
        assert any(words in each.says for each in found), (words, found)
        assert all(each.about.startswith(one.name) and each.fix for each in found), found


async def test_what_no_replica_has_is_said_of_each(stack):
    """An unknown model, an unknown version, TLS where there is none."""
    for words, changes in (
        ("has not loaded model other", {"match": {"models": ["other"]}}),
        (
            "has not loaded version 7 of model toy-llm",
            {"variants": [{"name": "stable", "model_version": "7"}]},
        ),
        ("fails the TLS handshake", {"upstream_tls": {}}),
    ):
        found = await examine(fleet_of(stack, **changes))
        assert {each.about.split()[0] for each in found if words in each.says} == {
            each.name for each in stack.replicas[:2]
        }, (words, found)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return the command line."""
    return Run(capsys)


def test_a_running_stack_is_examined_as_a_whole(stack, run: Run, tmp_path):
    """The command asks the control server and Envoy; Envoy's flags are those that we start with."""
    file = tmp_path / "fleet.json"
    got = run("get", "fleet", "-o", "json", "--server", stack.addresses.admin)
    file.write_text(got.out)
    ran = run(
        *("doctor", "-f", str(file), "--server", stack.addresses.admin, "-o", "json"),
        *("--envoy", stack.addresses.envoy_admin),
    )
    found = [each for each in json.loads(ran.out)["findings"] if each["about"] != "this machine"]
    assert [each for each in found if each["level"] == "fault"] == []
    assert [each for each in found if each["about"].startswith("Envoy at")] == []


@pytest.mark.parametrize("option", ["--server", "--envoy"])
def test_a_service_that_does_not_answer_is_a_fault(run: Run, option: str):
    """Exit code 1, and one finding with the fix."""
    ran = run("doctor", option, CLOSED, "-o", "json")
    faults = [each for each in json.loads(ran.out)["findings"] if each["level"] == "fault"]
    assert (ran.code, len(faults)) == (1, 1)
    assert faults[0]["fix"]
