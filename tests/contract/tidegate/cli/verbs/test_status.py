"""``status`` with a verdict, its exit codes, and replicas as pickers see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run


@pytest.fixture
def told(admin: FakeAdmin) -> FakeAdmin:
    """Return an admin API that tells a verdict, replicas and traffic."""
    status = admin.status
    status.verdict = "DEGRADED"
    status.why = "replica r1 of pool llm is frozen 12 s more (and 1 more)"
    status.reasons.extend(["replica r1 of pool llm is frozen 12 s more", "[/red] disk full"])
    status.drift.append("pool llm: variant canary weight 5 -> 10")
    status.reports["picker-1"] = 2.04
    stable = api.VariantStatus(
        variant="stable",
        weight=95,
        replicas=2,
        usable=1,
        seconds=60.0,
        requests=120,
        errors=3,
        failed={"error": 3},
        duration_p50=0.1181,
        duration_p99=1.44,
        prompt_tokens=200,
        cached_tokens=50,
    )
    idle = api.VariantStatus(variant="canary", weight=5, replicas=1, usable=1, seconds=60.0)
    status.pools.append(
        api.PoolStatus(
            pool="llm",
            variants=[stable, idle],
            refused={"saturated": 4},
            waiting=7,
            wait_seconds=0.25,
            queued=90,
            queued_p50=0.05,
            queued_p99=1.5,
        )
    )

    def replicas(_self: Any, _request: Any, _context: Any) -> api.GetReplicasResponse:
        frozen = api.ReplicaCondition(name="frozen", cause="no sign of life", pickers=1)
        r1 = api.ReplicaStatus(
            pool="llm",
            endpoint="r1",
            state="frozen 12 s more",
            conditions=[frozen],
            age_seconds=8.25,
            pickers=1,
            limits=[
                api.RequestLimit(model="a", most=5, source="declared"),
                api.RequestLimit(most=2, source="set"),
            ],
        )
        r2 = api.ReplicaStatus(
            pool="llm", endpoint="r2", state="draining, 3 left", pickers=1, usable=False
        )
        return api.GetReplicasResponse(replicas=[r1, r2])

    def traffic(_self: Any, _request: Any, _context: Any) -> api.GetTrafficResponse:
        minute = api.TrafficMinute(
            pool="llm", variant="stable", age_seconds=130.0, requests=9, duration_p50=0.25
        )
        return api.GetTrafficResponse(minutes=[minute])

    admin.calls["GetReplicas"], admin.calls["GetTraffic"] = replicas, traffic
    return admin


def test_status_opens_with_the_verdict(run: Run, told: FakeAdmin) -> None:
    """One word and why; then the other reasons, pools, and what differs from the file."""
    lines = run("status", "--server", told.address).out.splitlines()
    assert lines[0] == "DEGRADED: replica r1 of pool llm is frozen 12 s more (and 1 more)"
    text = "\n".join(lines)
    assert "[/red] disk full" in text
    rows = [" ".join(line.split()) for line in lines]
    assert "llm stable 1 of 2 usable 2.0 3 - 118 ms 1.4 s" in rows
    assert "canary 1 of 1 usable 0.0 0 - - -" in rows
    assert "pool llm: 4 requests refused in the last minute: saturated" in text
    waits = "7 requests wait in pickers; one that comes now is expected to wait 250 ms"
    assert f"pool llm: {waits}" in text
    assert "pool llm: 90 requests waited in the last minute, p50 50 ms, p99 1.5 s" in text
    assert "differs from the fleet file applied last: pool llm: variant canary" in text
    assert text.index("DEGRADED") < text.index("revision 7, settled")


def test_status_as_data(run: Run, told: FakeAdmin) -> None:
    """Scripts read the numbers; what is unknown is null."""
    data = json.loads(run("status", "--server", told.address, "-o", "json").out)
    assert data["verdict"] == "DEGRADED"
    stable, idle = data["pools"][0]["variants"]
    assert (stable["requests_per_second"], stable["cached"]) == (2.0, "25%")
    assert (idle["duration_p50"], idle["cached"]) == (None, None)
    assert data["reports"] == {"picker-1": 2.0}
    queue = data["pools"][0]["queue"]
    assert (queue["waiting"], queue["ended"], queue["queued_p99"]) == (7, 90, 1.5)
    told.status.pools[0].ClearField("waiting")
    told.status.pools[0].ClearField("queued_p99")
    told.status.reports.clear()
    data = json.loads(run("status", "--server", told.address, "-o", "json").out)
    queue = data["pools"][0]["queue"]
    assert (queue["waiting"], queue["ended"], queue["queued_p99"]) == (None, None, None)


@pytest.mark.parametrize(
    ("word", "code"), [("OK", 0), ("DEGRADED", 1), ("OUTAGE", 2), ("", 3), ("NEW", 3)]
)
def test_check_exits_by_the_word(run: Run, told: FakeAdmin, word: str, code: int) -> None:
    """For monitoring; without --check the exit code is that of the call."""
    told.status.verdict = word
    assert run("status", "--check", "--server", told.address).code == code
    assert run("status", "--server", told.address).code == 0


def test_check_of_a_server_that_does_not_answer(run: Run) -> None:
    """It is not known whether all is well, which is no DEGRADED."""
    assert run("status", "--check", "--server", "127.0.0.1:1").code == 3


def test_endpoints_have_state_and_age(run: Run, told: FakeAdmin) -> None:
    """As pickers see them; an age that is not known is no number."""
    rows = run("get", "endpoints", "--server", told.address).out.splitlines()
    assert rows[0].split()[-1] == "age"
    text = " ".join(" ".join(rows).split())
    assert "frozen 12 s more" in text
    assert "draining, 3 left" in text
    assert "a: 5 declared, 2 set" in text
    first, second = json.loads(run("get", "endpoints", "--server", told.address, "-o", "json").out)
    assert (first["state"], first["age_seconds"]) == ("frozen 12 s more", 8.25)
    assert first["conditions"][0]["cause"] == "no sign of life"
    assert second["age_seconds"] is None


def test_traffic_by_minute(run: Run, told: FakeAdmin) -> None:
    """The last hour."""
    rows = run("get", "traffic", "--server", told.address).out.splitlines()
    assert " ".join(rows[1].split()) == "llm stable 2 9 0 250 ms - -"
