"""A replica hangs while it has requests: others answer those that may be repeated."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import tritonclient.grpc.aio as triton_grpc

from support.replicas import Replica, stack_over
from support.traffic import GENERATE, VISION, fresh_prompt, metric, vision_body, vision_inputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HANG_S = 100.0
"""Longer than anything here takes; a request that waits for its replica waits 600 s."""
BOUNDS = {"timeouts": {"first_answer": "600s"}, "outlier": {"frozen_after": "1s"}}
Answer = tuple[int, str, str]


async def ask(
    http: Any, stack: Any, path: str = GENERATE, sent: Any = None, headers: Any = None
) -> Answer:
    """Return status, text and reason of an answer."""
    sent = {"text_input": fresh_prompt(64), "max_tokens": 2} if sent is None else sent
    async with http.post(stack.http_url + path, json=sent, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers.get("x-tidegate-reason", "")


async def until(goal: Callable[[], Awaitable[bool]], busy: Callable[[], Any] = int) -> None:
    """Wait for a goal; call ``busy`` meanwhile."""
    async with asyncio.timeout(HANG_S):
        while not await goal():
            busy()
            await asyncio.sleep(0.1)


def have_ended(asked: list[asyncio.Task[Any]]) -> Callable[[], Awaitable[bool]]:
    """Return a goal: that requests were answered."""

    async def ended() -> bool:
        return all(task.done() for task in asked)

    return ended


async def left(http: Any, stack: Any, end: str) -> float:
    """Return how many requests left a hung replica in this way."""
    name = "tidegate_picker_hung_requests_total"
    return await metric(http, stack.picker_metrics, name, end=end)


def open_all(replicas: list[Replica]) -> None:
    """Let replicas answer."""
    for replica in replicas:
        if replica.gate is not None:
            replica.gate.set()


class Hung(NamedTuple):
    """A stack over three replicas, of which the first holds its requests until its gate opens."""

    stack: Any
    replicas: list[Replica]
    asked: list[asyncio.Task[Answer]]
    """Requests of the beginning; each replica has some."""
    others: list[asyncio.Task[Answer]]
    send: Callable[[], Any]
    """Sends one of the others."""

    @property
    def reads(self) -> int:
        """Requests that replicas have read."""
        return sum(len(replica.asked) for replica in self.replicas)


@asynccontextmanager
async def hung_one(
    http: Any, *, lives: bool = False, slots: int = 0, headers: Any = None, **routing: Any
) -> AsyncIterator[Hung]:
    """Run such a stack.

    Args:
        http: Client.
        lives: The first replica answers probes.
        slots: Requests that a replica takes at once, 0 = any. With them the first replica has one
            that waited.
        headers: Headers of the requests of the beginning.
        routing: Settings of the pool.
    """
    replicas = [Replica(f"r{number}") for number in (1, 2, 3)]
    more = {**BOUNDS, "routing": {"retry_read": 1, **routing}}
    more["health"] = {"interval": "300ms", "timeout": "20s", "unhealthy_after": 100}
    more["circuit_breaker"] = {"per_endpoint_in_flight": slots} if slots else {}
    async with stack_over(*replicas, more=more) as stack:
        first, others = replicas[0], []
        for replica in replicas:
            replica.asked.clear()
            replica.gate = asyncio.Event()
            if not slots and replica is not first:
                replica.gate.set()
        count = 3 * slots + 1 if slots else 9  # a longer line may refuse one that comes late
        asked = [asyncio.create_task(ask(http, stack, headers=headers)) for _ in range(count)]
        hung = Hung(
            stack,
            replicas,
            asked,
            others,
            lambda: others.append(asyncio.create_task(ask(http, stack))),
        )

        async def spread() -> bool:
            return hung.reads >= len(asked) and all(replica.asked for replica in replicas)

        def more() -> None:  # where chance gave a replica none: those that answer at once look idle
            if hung.reads >= len(asked):
                asked.append(asyncio.create_task(ask(http, stack, headers=headers)))

        async def wait() -> bool:
            waiting = await metric(http, stack.picker_metrics, "tidegate_picker_waiting")
            return hung.reads == 3 * slots and waiting == len(asked) - 3 * slots

        async def took() -> bool:
            return len(first.asked) == 2 * slots

        try:
            if slots:
                await until(wait)
                gate, first.gate = first.gate, asyncio.Event()
                gate.set()
                await until(took)
                open_all(replicas[1:])
            await until(spread, more)
            first.ready = lives
            yield hung
        finally:
            open_all(replicas)
            ends = await asyncio.gather(*asked, *others, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, BaseException)]


@pytest.mark.parametrize("body", ["peek", "full", "none"])
async def test_others_answer_what_a_hung_replica_has(http, body, demo_extra):  # noqa: ARG001 - skips
    """Each request is read by one further replica, once, long before its bound."""
    async with hung_one(http, body=body) as hung:
        await until(have_ended(hung.asked), hung.send)
        await until(have_ended(hung.others))
        for status, text, _ in [each.result() for each in (*hung.asked, *hung.others)]:
            assert (status, "r1" in text) == (200, False)
        moved = await left(http, hung.stack, "moved")
        assert moved == len(hung.replicas[0].asked)
        assert hung.reads == len(hung.asked) + len(hung.others) + moved
        assert await left(http, hung.stack, "refused") == 0


async def test_time_on_a_hung_replica_is_taken_off_the_deadlines(http, demo_extra):  # noqa: ARG001 - skips
    """Of the caller's 90 s another replica gets those that are left; bodies stay as they are."""
    given = {"tidegate-timeout-ms": "90000", "grpc-timeout": "90S"}
    async with hung_one(http, headers=given) as hung:
        hung.replicas[1].asked.clear()
        hung.replicas[2].asked.clear()
        await until(have_ended(hung.asked), hung.send)
        await until(have_ended(hung.others))
        assert {each.result()[0] for each in hung.asked} == {200}
        again = [
            each
            for replica in hung.replicas[1:]
            for each in replica.asked
            if "tidegate-timeout-ms" in each
        ]
        assert len(again) == await left(http, hung.stack, "moved") > 0
        for each in again:
            # It was found hung after a second at the earliest.
            rest_ms = int(each["tidegate-timeout-ms"])
            assert 1000 < rest_ms < 89_000
            assert int(each["grpc-timeout"].removesuffix("m")) in range(rest_ms, 89_000)
            assert "x-tidegate-until" in each


async def test_what_waited_in_the_picker_leaves_a_hung_replica(http, demo_extra):  # noqa: ARG001 - skips
    """It was sent when the replica had room again, and one further replica reads it."""
    async with hung_one(http, slots=1, max_wait="10s") as hung:
        await until(have_ended(hung.asked), hung.send)
        await until(have_ended(hung.others))
        assert {each.result()[0] for each in (*hung.asked, *hung.others)} == {200}
        assert await left(http, hung.stack, "moved") == 1
        assert hung.reads == len(hung.asked) + len(hung.others) + 1
        assert await left(http, hung.stack, "refused") == 0


@pytest.mark.parametrize(
    "routing", [{"retry_read": 0}, {"hung_requests": "refuse"}], ids=["no further read", "refuse"]
)
async def test_what_may_not_be_repeated_is_answered(http, demo_extra, routing):  # noqa: ARG001 - skips
    """503 with a reason, and no further replica reads it."""
    async with hung_one(http, **routing) as hung:
        await until(have_ended(hung.asked), hung.send)
        await until(have_ended(hung.others))
        ends = [each.result() for each in (*hung.asked, *hung.others)]
        refused = [(status, reason) for status, _, reason in ends if status != 200]
        assert set(refused) == {(503, "hung-replica")}
        here = len(hung.replicas[0].asked)
        assert len(refused) == here == await left(http, hung.stack, "refused")
        assert hung.reads == len(ends)
        assert await left(http, hung.stack, "moved") == 0


async def test_a_pool_may_let_requests_wait(http, demo_extra):  # noqa: ARG001 - skips
    """The fault that the others would show: with `wait` requests stay on their hung replica."""
    async with hung_one(http, hung_requests="wait") as hung:

        async def found() -> bool:
            name = "tidegate_picker_conditions"
            return await metric(http, hung.stack.picker_metrics, name, condition="frozen") > 0

        await until(found, hung.send)
        waiting = [task for task in (*hung.asked, *hung.others) if not task.done()]
        assert len(waiting) >= len(hung.replicas[0].asked)
        assert await left(http, hung.stack, "moved") == await left(http, hung.stack, "refused") == 0


async def test_long_requests_of_a_replica_that_lives_are_read_once(http, demo_extra):  # noqa: ARG001 - skips
    """A replica that answers probes may take longer than `frozen_after`: nothing is repeated."""
    async with hung_one(http, lives=True) as hung:

        async def told() -> bool:
            """Each request there was told of three times, once a second."""
            name = "tidegate_picker_feedback_entries_total"
            entries = await metric(http, hung.stack.picker_metrics, name, outcome="early")
            return entries >= 3 * len(hung.replicas[0].asked)

        await until(told)
        hung.replicas[0].gate.set()
        await until(have_ended(hung.asked))
        assert {each.result()[0] for each in hung.asked} == {200}
        assert hung.reads == len(hung.asked)
        assert await left(http, hung.stack, "moved") == await left(http, hung.stack, "refused") == 0


async def test_requests_on_a_triton_that_is_stopped_are_answered_by_another(
    http, new_stack, tritons
):
    """Over HTTP and gRPC, though the bound on a first answer is ten minutes."""
    pool = {**BOUNDS, "health": {"interval": "300ms", "timeout": "1s"}}
    stack = await new_stack(models=("vision",), fleet={"pools": {"vision": pool}})
    stopped = tritons.supervisor.pid(stack.replicas[0].name)

    async def over_http() -> None:
        assert (await ask(http, stack, VISION, vision_body()))[0] == 200

    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:

        async def over_grpc() -> None:
            result = await client.infer("vision", vision_inputs())
            assert result.as_numpy(result.get_response().outputs[0].name) is not None

        others: list[asyncio.Task[None]] = []

        def send() -> None:
            others.append(asyncio.create_task(over_http()))

        async def moved() -> bool:  # chance may give the stopped one none of the first
            return await left(http, stack, "moved") > 0

        os.kill(stopped, signal.SIGSTOP)
        try:
            asked = [
                asyncio.create_task(over_grpc() if number % 2 else over_http())
                for number in range(12)
            ]
            await until(moved, send)
            await until(have_ended(asked), send)
            await until(have_ended(others))
        finally:
            os.kill(stopped, signal.SIGCONT)
        await asyncio.gather(*asked, *others)
    assert await left(http, stack, "moved") > 0
    assert await left(http, stack, "refused") == 0
