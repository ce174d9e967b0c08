"""Envoy's access log, read from the file that a real Envoy writes."""

from __future__ import annotations

import json

import pytest

from support.edge_stack import EdgeStack
from support.in_process_stack import WAIT
from support.traffic import eventually

pytestmark = pytest.mark.timeout(180)

INFER = "/v2/models/toy-llm/generate"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return the path of the log."""
    return tmp_path_factory.mktemp("log") / "access.json"


@pytest.fixture(scope="module")
async def edge(demo_extra, log):  # noqa: ARG001 - skips first
    """Run a stack whose Envoy logs to a file."""
    async with EdgeStack(listener={"access_log": {"file": str(log)}}) as stack:
        yield stack


async def logged(log, request_id):
    """Return the entry of a request, as soon as Envoy has written it."""
    found = []

    def look():
        text = log.read_text() if log.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may not be whole yet
        found[:] = [each for each in map(json.loads, lines) if each["request_id"] == request_id]
        return bool(found)

    async def written() -> bool:
        return look()

    assert await eventually(written)
    (entry,) = found
    return entry


async def ask(edge, path, request_id, **headers):
    """Send a request with secrets in it; return the status."""
    secrets = {"authorization": "Bearer s3cret", "x-session-id": "s3cret"}
    async with edge.http.post(
        f"http://{edge.listener}{path}?key=s3cret",
        json={"text_input": "s3cret", "max_tokens": 1},
        headers={"x-request-id": request_id, **secrets, **headers},
    ) as answer:
        return answer.status


async def test_an_entry_tells_the_pick_and_how_it_ended(edge, log):
    """An operator finds a request by its id, and nothing in the log is a secret."""
    assert await ask(edge, INFER, "found-1") == 200
    entry = await logged(log, "found-1")
    assert (entry["status"], entry["method"], entry["attempts"]) == (200, "POST", 1)
    assert (entry["pool"], entry["variant"], entry["picker"]) == ("llm", "stable", "picker-1")
    assert entry["picked"] == entry["served"] == edge.llm.http
    assert entry["reason"]
    assert entry["prompt_tokens"] >= entry["predicted_tokens"] >= 0
    assert entry["duration_ms"] >= entry["first_byte_ms"] >= entry["sent_ms"] >= 0
    assert (entry["flags"], entry["refused"]) == ("-", None)
    assert "s3cret" not in log.read_text()


async def test_an_answer_of_envoys_own_is_logged_with_its_cause(edge, log):
    """A path of no pool has no pick; the flag says why."""
    assert await ask(edge, "/v9/nothing", "found-2") == 404
    entry = await logged(log, "found-2")
    assert (entry["route"], entry["picked"], entry["refused"]) == ("no-pool", None, "unknown-path")


async def test_the_share_changes_without_draining(edge, log):
    """With `percent: 0` nothing is logged, over the same connection."""
    fleet = edge.first_fleet()
    fleet["listener"]["access_log"]["percent"] = 0
    await edge.control.apply_text(json.dumps(fleet), "fleet", WAIT)
    assert await ask(edge, INFER, "found-3") == 200
    fleet["listener"]["access_log"]["percent"] = 100
    await edge.control.apply_text(json.dumps(fleet), "fleet", WAIT)
    assert await ask(edge, INFER, "found-4") == 200
    await logged(log, "found-4")
    assert "found-3" not in log.read_text()
