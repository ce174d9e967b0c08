"""Sessions of a rollout, from a real Envoy's draw and log to the control server's reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from support.in_process_stack import GENERATE, InProcessStack
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.names import SERVED_BY_HEADER
from xds_server.fleet.view import CanaryMark

if TYPE_CHECKING:
    from tidegate_api.fleet.v1 import report_pb2

pytestmark = pytest.mark.timeout(120)

TOTAL, CANARY = 1_716_049, 858_025
"""Weights as a rollout draws them, of which the canary has half."""


def heard(stack: InProcessStack) -> dict[int, report_pb2.CanarySession]:
    """Return what the control server hears of sessions, by digest."""
    found: dict[int, report_pb2.CanarySession] = {}
    take = stack.ads.reports._take

    def taken(picker: str, stream: int, report: report_pb2.PickerReport) -> str:
        for message in report.canaries:
            assert (message.pool, message.rollout) == ("llm", "r1")
            found.update({each.digest: each for each in message.sessions})
        return take(picker, stream, report)

    stack.ads.reports._take = taken  # type: ignore[method-assign]  # the test listens in
    return found


async def ask(stack: InProcessStack, headers: dict[str, str]) -> tuple[int, str | None]:
    """Return the status of a request, and which replica served it."""
    body = {"text_input": "a b c", "max_tokens": 1}
    async with stack.http.post(
        f"http://{stack.listener}{GENERATE}", json=body, headers=headers
    ) as answer:
        await answer.read()
        return answer.status, answer.headers.get(SERVED_BY_HEADER)


async def test_the_control_server_hears_what_became_of_each_session() -> None:
    """In the arm that Envoy drew; then the canary's replica is dead, and only it has failures."""
    async with InProcessStack("delta") as stack:
        found = heard(stack)
        fleet: dict[str, Any] = stack.first_fleet()
        fleet["listener"]["debug_headers"] = True
        for variant, weight in zip(
            fleet["pools"][0]["variants"], (TOTAL - CANARY, CANARY), strict=True
        ):
            variant["weight"] = weight
        stack.control.mark_canaries({"llm": CanaryMark("r1", "c0", "stable", (CANARY,), TOTAL)})
        await stack.apply(fleet)
        # The picker has just started, so it cannot tell whether a session that is named is new.
        named = [{"x-session-id": f"session-{number}"} for number in range(4)]
        told = [await ask(stack, headers) for headers in (*named, *({} for _ in range(40)))]
        assert {status for status, _ in told} == {200}
        drawn = sum(served == stack.upstreams[2] for _, served in told[4:])

        async def all_told() -> bool:
            return len(found) >= 40

        assert await eventually(all_told), len(found)
        assert len(found) == 40
        assert sum(each.canary for each in found.values()) == drawn
        for each in found.values():
            assert each.step == 0
            assert not each.HasField("failure")
            assert each.first.stratum.startswith("generate/")
            assert {"first-token", "whole"} <= set(each.first.times)

        before = set(found)
        with HeldPorts() as ports:
            fleet["pools"][0]["endpoints"][2]["http"] = ports.address()
            await stack.apply(fleet)
            told = await asyncio.gather(*(ask(stack, {}) for _ in range(24)))
        failed = sum(status != 200 for status, _ in told)
        assert failed

        async def rest_told() -> bool:
            return len(found) >= len(before) + 24

        assert await eventually(rest_told), len(found) - len(before)
        rest = [each for digest, each in found.items() if digest not in before]
        assert {each.canary for each in rest if each.HasField("failure")} == {True}
        assert sum(each.HasField("failure") for each in rest) == failed
        assert sum(each.canary for each in rest) == failed
