"""A canary that decides, by the commands of its page, over real Tritons and a real Envoy.

Steps take seconds here by the overrides of ``PLAN``, which any rollout may have: ``window`` is the
time whose evidence is judged together, and an outcome is known after ten of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.replicas import PATIENT, Replica
from tidegate.cli.main import main

if TYPE_CHECKING:
    import aiohttp

    from support.lab import StackFactory
    from tidegate.stack.local import LocalStack

pytestmark = pytest.mark.timeout(180)

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "canary.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
PLAN = {
    "steps": "50,100",
    "least_time": "2s",
    "least_sessions": "20",
    "failures_below": "20",
    "slower": "900",
    "window": "1s",
}
"""Steps of seconds, and margins that a hundred sessions can prove on a busy machine."""
LIMIT_S = 120.0
"""Longest wait for an end, for a hang."""


def run(*words: str) -> str:
    """Run a command of the page; return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, f"{shlex.join(words)}: {out.getvalue()}"
    return out.getvalue()


async def page(line: str, *more: str) -> str:
    """Run a command that the page has."""
    assert line in COMMANDS, f"docs/how-to/canary.md has no command: {line}"
    return await asyncio.to_thread(run, *shlex.split(line)[1:], *more)


async def until_ended(
    stack: LocalStack, http: aiohttp.ClientSession, answers: Counter[int]
) -> dict[str, Any]:
    """Send requests, each a session of its own, until the rollout has ended; return its report."""
    number = answers.total()
    async with asyncio.timeout(LIMIT_S):
        while True:
            for _ in range(5):
                sent = [ask(stack, http, number + each) for each in range(8)]
                answers.update(await asyncio.gather(*sent))
                number += 8
            report: dict[str, Any] = json.loads(await page("tidegate canary report llm -o json"))
            if report["phase"] not in {"running", "paused"}:
                return report


async def ask(stack: LocalStack, http: aiohttp.ClientSession, number: int) -> int:
    """Send a request; return the status."""
    text = f"question number {number:06}, {'odd' if number % 2 else 'even'}"
    body = {"text_input": text, "max_tokens": 1}
    async with http.post(f"{stack.http_url}/v2/models/toy-llm/generate", json=body) as answer:
        await answer.read()
        return answer.status


def fleet_of(bad: Replica) -> Any:
    """Return the change to one replica for each variant: good ones, and one that fails."""

    def change(fleet: dict[str, Any]) -> None:
        (pool,) = (each for each in fleet["pools"] if each["name"] == "llm")
        pool["endpoints"] = [each for each in pool["endpoints"] if each["id"] != "r2"]
        for each in pool["endpoints"]:
            del each["grpc"]  # the one that fails has no gRPC
        pool["endpoints"].append({"id": bad.name, "http": bad.address, "variant": "bad"})
        pool["variants"].append({"name": "bad", "weight": 0})
        pool["health"]["timeout"] = PATIENT
        # Statistics are to judge it, not the guard that counts replicas in use.
        pool["outlier"] = {"consecutive_failures": 1000, "failure_percent": 0}
        fleet["pickers"]["timeout"] = PATIENT

    return change


async def test_a_good_version_gets_everything_and_a_bad_one_nothing(
    http: aiohttp.ClientSession, new_stack: StackFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By themselves: the first loses no request, the second is rolled back by the statistics.

    It fails every other request, and all that fail are at most its share.
    """
    bad = Replica(
        "r9", fails_on=b"odd", index=({"name": "toy-llm", "version": "3", "state": "READY"},)
    )
    async with bad.serve():
        stack = await new_stack(models=("toy-llm",), fleet=fleet_of(bad))
        monkeypatch.setenv("TIDEGATE_SERVER", stack.admin_address)
        plan = [word for each in PLAN.items() for word in ("--plan", "=".join(each))]

        line = "tidegate canary start llm --to canary --reason 'v2 of the model'"
        assert "canary llm: canary at 50 %, running" in await page(line, *plan)
        assert "waits for" in await page("tidegate canary status llm")
        assert "canary llm: canary at 50 %" in await page("tidegate status")
        await page("tidegate canary pause llm --reason 'lunch'")
        await page("tidegate canary resume llm")
        assert "frozen" in await page("tidegate canary freeze --reason 'incident 7'")
        await page("tidegate canary unfreeze")
        answers: Counter[int] = Counter()
        report = await until_ended(stack, http, answers)
        assert (report["phase"], report["percent"]) == ("promoted", 100.0), report
        assert set(answers) == {200}, answers
        assert report["sessions"]["canary"] > 20

        await asyncio.to_thread(run, "canary", "start", "llm", "--to", "bad", *plan)
        answers.clear()
        report = await until_ended(stack, http, answers)
        assert (report["phase"], report["stable"]) == ("rolled-back", "canary"), report
        assert report["reason"].startswith("worse: failures"), report
        (failures,) = (each for each in report["checks"] if each["check"] == "failures")
        assert failures["worse"] >= 20.0, report
        sent, failed = answers.total(), answers[500]
        assert 0 < failed <= len(bad.asked), f"failed before the rollback: {answers}"
        assert failed <= 0.5 * sent + 5.0 * math.sqrt(0.25 * sent), f"more than 50 %: {answers}"
        await stack.wait_synced()  # the phase is told before Envoy has the weights
        assert {await ask(stack, http, each) for each in range(20)} == {200}

        await asyncio.to_thread(run, "canary", "start", "llm", "--to", "stable", *plan)
        ended = await page("tidegate canary abort llm --reason 'not today'")
        assert "canary llm: stable at 0 %, aborted" in ended
        history = await asyncio.to_thread(run, "history", "-o", "json")
        reasons = [each["reason"] for each in json.loads(history)]
        assert any("no worse in all checks" in each for each in reasons), reasons
