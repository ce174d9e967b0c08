"""Rollouts that decide by themselves, with real Envoy and real Tritons; steps take seconds.

Stable and canary are each a Triton behind a proxy of the test. That of the canary passes all on or
fails as a bad version would: its answers are errors, it hangs, it crashes under load, it cuts its
streams. ``-rP`` shows what each rollout cost.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import pytest
from aiohttp import web

from support.shared_stack import patient
from support.sites import end
from support.traffic import GENERATE_STREAM, Traffic, eventually, fresh_prompt, picker_state

if TYPE_CHECKING:
    from tidegate.stack.local import LocalStack
    from tidegate.stack.tritons.fleet import Tritons

POOL, CANARY, STABLE, BEHIND = "llm", "canary", "stable", "r3"
STEPS: Final = (20.0, 50.0, 100.0)
PLAN: Final = {
    "steps": "20,50,100",
    "least_time": "5s",
    "least_sessions": "20",
    "window": "1s",
    "slower": "400",
    "failures": "2",
    "failures_below": "10",
}
"""Two Tritons that share a machine: only a difference of several times is shown in seconds."""
SEEN: Final = "30s"
"""Least time of steps that a test looks for: a command takes seconds where the machine is busy."""
BOUND_S: Final = 300.0
"""Limit for a decision; half a minute is usual."""
LOAD: Final = 3
"""Requests in flight at which the version that crashes under load does."""
HEADERS: Final = frozenset({"content-type", "accept", "x-request-id"})

pytestmark = pytest.mark.timeout(900)


class Version:
    """Stands before a Triton and passes its answers on, or does what a bad version does."""

    def __init__(self, inside: str, tritons: Tritons) -> None:
        self.mode = "good"
        self.asked = self.at_once = 0
        """Inferences so far, and those in flight."""
        self._inside = inside
        self._tritons = tritons
        self._crash: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mended()
        await end(self._runner)
        await self._http.close()

    async def mended(self) -> None:
        """Be good again, with a Triton that runs."""
        self.mode = "good"
        if self._crash is not None:
            await self._crash
            await self._tritons.restart(BEHIND)
            self._crash = None

    def crash(self) -> None:
        """Kill the Triton."""
        if self._crash is None:
            self._crash = asyncio.create_task(self._tritons.kill(BEHIND))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        inference = "/generate" in request.path
        self.asked += inference
        self.at_once += inference
        try:
            if inference and self.mode == "fails":
                return web.json_response({"error": "CUDA error: device-side assert"}, status=500)
            if inference and self.mode == "hangs":
                await asyncio.Event().wait()
            if inference and self.mode == "crashes" and self.at_once >= LOAD:
                self.crash()
            return await self._passed(request, body, cuts=inference and self.mode == "cuts")
        except aiohttp.ClientError:
            request.transport.abort()
            return web.Response(status=502)
        finally:
            self.at_once -= inference

    async def _passed(self, request: web.Request, body: bytes, *, cuts: bool) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() in HEADERS}
        url = f"http://{self._inside}{request.raw_path}"
        async with self._http.request(
            request.method, url, data=body or None, headers=headers
        ) as told:
            answer = web.StreamResponse(status=told.status)
            if "content-type" in told.headers:
                answer.headers["content-type"] = told.headers["content-type"]
            await answer.prepare(request)
            async for piece in told.content.iter_any():
                await answer.write(piece)
                if cuts:
                    request.transport.abort()
                    return answer
            await answer.write_eof()
            return answer


class Rollouts:
    """The commands of an operator."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack

    async def call(self, *words: str) -> tuple[int, str]:
        """Run ``tidegate`` and return its exit code and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate", *words, "--server", self._stack.admin_address),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def do(self, *words: str) -> str:
        """Run ``tidegate``, which must succeed."""
        code, out = await self.call(*words)
        assert code == 0, out
        return out

    async def start(self, **other: str) -> None:
        """Start a rollout of the canary, with another plan in parts."""
        plan = {**PLAN, **other}.items()
        words = [word for name, value in plan for word in ("--plan", f"{name}={value}")]
        await self.do("canary", "start", POOL, "--to", CANARY, *words)

    async def report(self) -> dict[str, Any]:
        """Return the report of the last rollout."""
        return json.loads(await self.do("canary", "report", POOL, "--output", "json"))

    async def until(self, *phases: str, percent: float | None = None) -> dict[str, Any]:
        """Wait for one of the phases, at a share if one is given; return the report."""
        told: dict[str, Any] = {}

        async def there() -> bool:
            nonlocal told
            told = await self.report()
            return told["phase"] in phases and percent in {None, told["percent"]}

        assert await eventually(there, BOUND_S), told
        return told

    async def weights(self) -> dict[str, int]:
        """Return the pool's weights."""
        fleet = json.loads(await self.do("get", "fleet", "--output", "json"))
        (pool,) = [each for each in fleet["pools"] if each["name"] == POOL]
        return {each["name"]: each["weight"] for each in pool["variants"]}


@pytest.fixture(scope="module")
async def version(tritons):
    """Return what stands before the canary's Triton."""
    async with Version(tritons.replica(BEHIND).http, tritons) as made:
        yield made


@pytest.fixture(scope="module")
async def before(tritons):
    """Return what stands before stable's Triton, so that its answers take as long."""
    async with Version(tritons.replica("r1").http, tritons) as made:
        yield made


@pytest.fixture(scope="module")
async def stack(new_module_stack, version, before):
    """Run a stack of two replicas behind proxies; requests are bounded to seconds."""

    def change(fleet: dict[str, Any]) -> None:
        patient(fleet, None)
        (pool,) = [each for each in fleet["pools"] if each["name"] == POOL]
        first, _, behind = pool["endpoints"]
        pool["endpoints"] = [first, behind]  # 100 % needs as many replicas
        first["http"], behind["http"] = before.address, version.address
        pool["timeouts"] = {"request": "4s"}
        fleet["pools"] = [pool]

    return await new_module_stack(fleet=change, models=("toy-llm",))


@pytest.fixture
async def rollouts(stack, http, version):
    """Return the commands; the canary is good and in use, and has no traffic yet."""
    await version.mended()
    made = Rollouts(stack)
    await made.do("weight", POOL, f"{STABLE}=100", f"{CANARY}=0")

    async def usable() -> bool:
        pools = (await picker_state(http, stack))["router"]["pools"]
        return not pools[POOL]["endpoints"][BEHIND]["conditions"]

    assert await eventually(usable)
    return made


@asynccontextmanager
async def traffic(http, stack):
    """Send streams from sixteen clients, each a session of its own."""

    def body() -> dict[str, Any]:
        return {"text_input": fresh_prompt(256), "max_tokens": 4, "stream": True}

    url = stack.http_url + GENERATE_STREAM
    async with Traffic(http, url, body, workers=16, pause_s=0.1) as clients:
        yield clients


def say(words: str) -> None:
    """Show figures under ``-rP``."""
    print(words)  # noqa: T201 - pytest shows it


def failed_at_most(sent: int, percent: float) -> float:
    """Return a bound on failures of requests that fail only at the canary (5 sigma)."""
    share = percent / 100.0
    return share * sent + 5.0 * math.sqrt(sent * share * (1.0 - share)) + 5.0


def most(told: dict[str, Any]) -> float:
    """Return the greatest share that the canary had."""
    return max(each["percent"] for each in told["log"])


async def test_a_good_version_goes_to_all_by_itself_and_nothing_is_lost(http, stack, rollouts):
    """Through each step in its order; each transition is in the report with its reason."""
    async with traffic(http, stack) as clients:
        await rollouts.start()
        told = await rollouts.until("promoted", "rolled-back", "paused")
    say(f"{told['reason']}; {told['sessions']} sessions, {clients.count} requests")
    assert told["phase"] == "promoted", told
    assert [each["percent"] for each in told["log"]] == list(STEPS)
    assert clients.failures == []
    weights = await rollouts.weights()
    assert weights[STABLE] == 0
    assert weights[CANARY] > 0


@pytest.mark.parametrize("mode", ["fails", "hangs", "crashes", "cuts"])
async def test_a_bad_version_is_rolled_back_at_the_cost_of_its_share(
    mode, http, stack, rollouts, version
):
    """All clients' failures are at most the step's share of the requests; then there are none."""
    version.mode = mode
    async with traffic(http, stack) as clients:
        before = clients.count
        await rollouts.start()
        told = await rollouts.until("rolled-back", "promoted", "paused")
        sent, failed = clients.count - before, len(clients.failures)
        say(
            f"{mode}: {failed} of {sent} requests failed, share {most(told):g} %;"
            f" {told['sessions']['canary']} sessions of the canary; {told['reason']}"
        )
        assert told["phase"] == "rolled-back", told

        await clients.drained()
        sent, after = clients.count - before, len(clients.failures)
        await clients.more(100)
    assert len(clients.failures) == after
    assert after <= failed_at_most(sent, most(told))
    assert (await rollouts.weights())[CANARY] == 0


@pytest.mark.parametrize("percent", STEPS[:-1])
async def test_a_kill_of_the_control_server_in_a_step_loses_nothing(percent, http, stack, rollouts):
    """The rollout goes on where it was, in the same order, to its end."""
    async with traffic(http, stack) as clients:
        await rollouts.start(least_time=SEEN)
        await rollouts.until("running", percent=percent)
        await stack.kill_control_server()
        await stack.start_control_server()
        told = await rollouts.until("promoted", "rolled-back", "paused")
    say(f"killed at {percent:g} %: {told['reason']}")
    assert told["phase"] == "promoted", told
    assert [each["percent"] for each in told["log"]] == list(STEPS)
    assert clients.failures == []


async def test_kills_of_the_control_server_while_it_rolls_back_change_nothing(
    http, stack, rollouts, version
):
    """It is rolled back, though it is killed again and again while it decides and acts."""
    version.mode = "fails"
    async with traffic(http, stack) as clients:
        await rollouts.start()
        for _ in range(4):
            await stack.kill_control_server()
            await stack.start_control_server()
            await clients.more(40)
        told = await rollouts.until("rolled-back", "promoted", "paused")
        await stack.kill_control_server()
        await stack.start_control_server()
    say(f"{len(clients.failures)} of {clients.count} requests failed; {told['reason']}")
    assert told["phase"] == "rolled-back", told
    assert (await rollouts.report())["phase"] == "rolled-back"
    assert (await rollouts.weights())[CANARY] == 0
    assert len(clients.failures) <= failed_at_most(clients.count, most(told))


@pytest.mark.parametrize("percent", STEPS[:-1])
async def test_an_operator_ends_a_rollout_in_any_step(percent, http, stack, rollouts):
    """The canary's weight is what it was before; a second abort is refused."""
    async with traffic(http, stack) as clients:
        await rollouts.start(least_time=SEEN)
        await rollouts.until("running", percent=percent)
        await rollouts.do("canary", "abort", POOL)
        told = await rollouts.report()
        code, _ = await rollouts.call("canary", "abort", POOL)
    assert told["phase"] == "aborted", told
    assert code != 0
    assert (await rollouts.weights())[CANARY] == 0
    assert clients.failures == []


async def test_weights_that_are_set_by_hand_meanwhile_pause_a_rollout(http, stack, rollouts):
    """Or are refused; a rollout never acts against them."""
    async with traffic(http, stack) as clients:
        await rollouts.start()
        code, out = await rollouts.call("weight", POOL, f"{STABLE}=70", f"{CANARY}=30")
        if code == 0:
            told = await rollouts.until("paused")
            assert "by hand" in told["reason"], told
            await clients.more(200)
            assert await rollouts.weights() == {STABLE: 70, CANARY: 30}
        await rollouts.do("canary", "abort", POOL)
    say(f"weights by hand: exit {code}; {out.strip()[-300:]}")
    assert clients.failures == []


async def test_a_variant_that_loses_its_last_replica_is_rolled_back(http, stack, rollouts, version):
    """Few requests fail: those in flight, and those until the replica is left alone."""
    async with traffic(http, stack) as clients:
        await rollouts.start(least_time=SEEN)
        await rollouts.until("running", percent=STEPS[0])
        version.crash()
        told = await rollouts.until("rolled-back", "promoted", "paused")
        failed = len(clients.failures)
        say(f"{failed} of {clients.count} requests failed; {told['reason']}")
        assert told["phase"] == "rolled-back", told
        await clients.drained()
        after = len(clients.failures)
        await clients.more(100)
    assert len(clients.failures) == after
    assert failed <= failed_at_most(clients.count, most(told))
    assert (await rollouts.weights())[CANARY] == 0
